//! The same traffic over several ways in one run, in turns: nodes in the programs, one daemon, two daemons, the brokers of others.

pub(crate) mod broker;
pub(crate) mod client;
pub(crate) mod mqtt;
pub(crate) mod nats;
mod table;

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rds_server::settings::Settings;
use rds_tests::ledger::process::Scratch;
use serde::Serialize;

use crate::case::{Case, Kind, Transport};
use crate::pair::{self, Setup};
use crate::side::say;
use broker::{Broker, Daemon as Server, NoBroker};
use table::Table;

/// Nodes of the two daemons, of the one, and of the programs.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 11);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 12);
const ONLY: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 13);

/// Of all TCP connections of RDS; `bbr` would pace loopback.
const CONGESTION_CONTROL: &str = "cubic";

/// How a message goes from the sending program to the receiving one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    /// A node in each program, TCP between them.
    Embedded,
    /// Both programs attach to one daemon.
    OneDaemon,
    /// Each attaches to a daemon of its own, TCP between them.
    TwoDaemons,
    /// Core NATS through nats-server.
    Nats,
    /// MQTT through mosquitto, QoS 0.
    MqttQos0,
    /// MQTT through mosquitto, QoS 1.
    MqttQos1,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "rds, embedded",
            Self::OneDaemon => "rds, one daemon",
            Self::TwoDaemons => "rds, two daemons",
            Self::Nats => "nats",
            Self::MqttQos0 => "mqtt, qos 0",
            Self::MqttQos1 => "mqtt, qos 1",
        }
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Rounds; each runs every case once over every way.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time of each run in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Time before it that is not measured, in seconds.
    #[arg(long, default_value_t = 0.4)]
    warmup: f64,
    /// Message sizes in bytes, 8 to 1048576.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 4096, 65536, 1 << 20],
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(8..=1 << 20))]
    sizes: Vec<usize>,
    /// Sizes of the messages whose round trips are measured, in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [64],
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(8..=1 << 20))]
    rtt_sizes: Vec<usize>,
    /// Only these ways.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Contender>,
    /// TCP port of RDS nodes, which are at 127.55.0.1, .2 and .11 to .13.
    #[arg(long, default_value_t = 17385)]
    port: u16,
    /// Bytes of each ring between daemon and client; a power of two [default: the daemon's].
    #[arg(long)]
    ring: Option<u32>,
    /// Buffers of RDS sockets in bytes.
    #[arg(long, default_value_t = 8 << 20)]
    buffer: u64,
    /// Also writes everything that was measured into this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Programs that attach to daemons, beside nodes in the programs.
#[derive(Args, Clone, Debug)]
pub(crate) struct Daemon {
    #[command(flatten)]
    options: Options,
}

/// Brokers of others beside ours.
#[derive(Args, Clone, Debug)]
pub(crate) struct Peers {
    #[command(flatten)]
    options: Options,
}

impl Daemon {
    pub(crate) fn run(&self) -> Result<(), String> {
        use Contender::{Embedded, OneDaemon, TwoDaemons};
        measure(&self.options, &[Embedded, OneDaemon, TwoDaemons], Embedded)
    }
}

impl Peers {
    pub(crate) fn run(&self) -> Result<(), String> {
        use Contender::{Embedded, MqttQos0, MqttQos1, Nats, OneDaemon, TwoDaemons};
        measure(&self.options, &[OneDaemon, TwoDaemons, Embedded, Nats, MqttQos0, MqttQos1], OneDaemon)
    }
}

/// A daemon with one node, until standard input ends.
#[derive(Args, Clone, Debug)]
pub(crate) struct Serve {
    #[arg(long)]
    address: Ipv4Addr,
    #[arg(long)]
    socket: PathBuf,
    /// TCP port of its node and of others.
    #[arg(long)]
    port: u16,
    /// Bytes of the rings, if not the usual ones.
    #[arg(long)]
    ring: Option<u32>,
}

impl Serve {
    pub(crate) fn run(&self) -> Result<(), String> {
        let mut settings = Settings::new(vec![IpAddr::V4(self.address)]);
        settings.socket.clone_from(&self.socket);
        (settings.listen_port, settings.dial_port) = (self.port, self.port);
        settings.ring = self.ring.unwrap_or(settings.ring);
        settings.congestion_control = Some(CONGESTION_CONTROL.to_owned());
        settings.admin = Some("127.0.0.1:0".parse()?);
        let server = rds_server::server::Server::start(settings).map_err(|e| e.to_string())?;
        say(&format!("ready {}", server.admin().ok_or("it has no admin endpoint")?))?;
        // An error ends the input as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        server.stop().map(drop).map_err(|e| e.to_string())
    }
}

/// What must run for the ways to be there.
struct Running {
    scratch: Scratch,
    port: u16,
    ring: Option<u32>,
    only: Option<Server>,
    two: Option<[Server; 2]>,
    nats: Option<Broker>,
    mosquitto: Option<Broker>,
}

impl Running {
    /// Starts what `way` needs; whether it can be had.
    fn prepare(&mut self, way: Contender) -> Result<bool, String> {
        let scratch = self.scratch.path();
        let broker = match way {
            Contender::Embedded => return Ok(true),
            Contender::OneDaemon => {
                self.only = Some(Server::start(scratch, ONLY, self.port, self.ring)?);
                return Ok(true);
            }
            Contender::TwoDaemons => {
                let start = |address| Server::start(scratch, address, self.port, self.ring);
                self.two = Some([start(FIRST)?, start(SECOND)?]);
                return Ok(true);
            }
            Contender::Nats => &mut self.nats,
            Contender::MqttQos0 | Contender::MqttQos1 => &mut self.mosquitto,
        };
        if broker.is_some() {
            return Ok(true);
        }
        let started = if way == Contender::Nats { Broker::nats() } else { Broker::mosquitto(scratch) };
        match started {
            Ok(started) => {
                eprintln!("{}", started.name);
                *broker = Some(started);
                Ok(true)
            }
            Err(NoBroker::Missing(why)) => {
                eprintln!("skipped: {}: {why}", way.name());
                Ok(false)
            }
            Err(NoBroker::Broken(why)) => Err(why),
        }
    }

    /// What sender and receiver are told, and over what they go.
    fn way(&self, way: Contender) -> (Transport, [Vec<String>; 2]) {
        let attach = |server: &Server, at: Ipv4Addr| {
            vec![
                "--attach".to_owned(),
                server.socket.display().to_string(),
                "--at".to_owned(),
                at.to_string(),
            ]
        };
        let broker = |broker: &Option<Broker>| {
            let at = broker.as_ref().map_or_else(String::new, |b| b.at.to_string());
            [0; 2].map(|_| vec!["--broker".to_owned(), at.clone()])
        };
        match (way, &self.only, &self.two) {
            (Contender::OneDaemon, Some(only), _) => (Transport::Rds, [0; 2].map(|_| attach(only, ONLY))),
            (Contender::TwoDaemons, _, Some([first, second])) => {
                (Transport::Rds, [attach(first, FIRST), attach(second, SECOND)])
            }
            (Contender::Nats, ..) => (Transport::Nats, broker(&self.nats)),
            (Contender::MqttQos0, ..) => (Transport::Mqtt0, broker(&self.mosquitto)),
            (Contender::MqttQos1, ..) => (Transport::Mqtt1, broker(&self.mosquitto)),
            _ => (Transport::Rds, [Vec::new(), Vec::new()]),
        }
    }

    /// Processor time of what stands between the programs, in seconds.
    fn cpu_seconds(&self, way: Contender) -> f64 {
        let of = |broker: &Option<Broker>| broker.as_ref().map_or(0.0, Broker::cpu_seconds);
        match way {
            Contender::Embedded => 0.0,
            Contender::OneDaemon => self.only.as_ref().map_or(0.0, Server::cpu_seconds),
            Contender::TwoDaemons => self.two.iter().flatten().map(Server::cpu_seconds).sum(),
            Contender::Nats => of(&self.nats),
            Contender::MqttQos0 | Contender::MqttQos1 => of(&self.mosquitto),
        }
    }
}

fn measure(options: &Options, ways: &[Contender], reference: Contender) -> Result<(), String> {
    let throughput = options.sizes.iter().map(|size| Case { kind: Kind::Throughput, size: *size });
    let round_trips = options.rtt_sizes.iter().map(|size| Case { kind: Kind::RoundTrip, size: *size });
    let cases: Vec<Case> = throughput.chain(round_trips).collect();
    let scratch = Scratch::new("bench");
    let (port, ring) = (options.port, options.ring);
    let mut running = Running { scratch, port, ring, only: None, two: None, nats: None, mosquitto: None };
    let mut there = Vec::new();
    for way in ways.iter().filter(|way| options.only.is_empty() || options.only.contains(way)) {
        if running.prepare(*way)? {
            there.push(*way);
        }
    }
    let setup = Setup {
        seconds: options.seconds,
        warmup: options.warmup,
        port,
        send_buffer: options.buffer,
        receive_buffer: options.buffer,
        congestion_control: CONGESTION_CONTROL.to_owned(),
    };
    let names = [&running.nats, &running.mosquitto].into_iter().flatten().map(|b| b.name.clone()).collect();
    let mut table = Table::new(&cases, &there, reference, names);
    for round in 1..=options.rounds {
        for case in &cases {
            for way in &there {
                let (transport, [sender, receiver]) = running.way(*way);
                let before = running.cpu_seconds(*way);
                let way_of = pair::Way { transport, sender: &sender, receiver: &receiver };
                let run = pair::run(&setup, *case, &way_of)
                    .map_err(|e| format!("{case} over {}: {e}", way.name()))?;
                let spent = running.cpu_seconds(*way) - before;
                let rounds = options.rounds;
                eprintln!("round {round} of {rounds}: {case} over {}: {}", way.name(), run.show(case.kind));
                table.add(*case, *way, run, spent);
            }
        }
    }
    print!("{table}");
    if let Some(file) = &options.json {
        let json = table.json(&setup, options.rounds)?;
        std::fs::write(file, json).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}
