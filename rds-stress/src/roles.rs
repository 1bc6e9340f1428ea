//! The two sides: from the control connection to the run.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::block::Block;
use crate::control;
use crate::error::{Failure, failure};
use crate::out::{Out, line};
use crate::processes::Processes;
use crate::run::{Local, Summary, Tasks, run};
use crate::session::{MAX_DEPTH, Role, Session};

/// How nodes are opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// TCP port on which the node listens.
    pub listen_port: u16,
    /// TCP port to which it connects.
    pub dial_port: u16,
    /// TCP connections to offer the peer.
    pub lanes: Lanes,
    /// `--attach`: the socket of the daemon whose node it is. Then the others have no effect.
    pub attach: Option<PathBuf>,
    /// `--processes`: whether each task is a process of its own.
    pub processes: bool,
}

/// How many lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lanes {
    /// That many, 1 to 8.
    Number(u8),
    /// As many as suit the processors.
    Auto,
}

/// What a side has been told on its command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// `-r`.
    pub own: Option<IpAddr>,
    /// `-p`.
    pub port: u16,
    /// `--header-bytes`.
    pub header: Option<usize>,
    /// `--peer-version`.
    pub peer_version: String,
    /// The RDS node.
    pub node: NodeSettings,
    /// The run.
    pub local: Local,
}

/// The options that travel, before the addresses are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// `-a`; the header's length by default.
    pub ack_size: Option<u32>,
    /// The rest. Its addresses mean nothing.
    pub block: Block,
}

impl Offer {
    /// The block from the active side at `active` to the passive one at `passive`.
    #[must_use]
    pub fn block(&self, passive: IpAddr, active: IpAddr, header: Option<usize>) -> Block {
        let default = header.map_or(Block::new(passive, active).ack_size, |len| len as u32);
        let ack_size = self.ack_size.unwrap_or(default);
        Block { send_addr: passive, receive_addr: active, ack_size, ..self.block.clone() }
    }
}

/// What a side has seen.
pub type Seen = (Session, Summary);

fn announce(local: &Local, out: Out) {
    let delay = local.schedule.start_delay.as_secs_f64();
    line!(out, "negotiated options, tasks will start in {delay} seconds");
}

/// Waits for an active side and does as it is told, once.
///
/// # Errors
/// No run took place.
pub fn passive<B: Backend>(settings: &Settings, out: Out) -> Result<Seen, Failure> {
    // An address that is given is tried at once, not only when somebody comes.
    let backend = settings.own.map(|own| B::open(own, Role::Passive, settings)).transpose()?;
    let listener = control::listen(settings.own, settings.port)?;
    let at = listener.local_addr().map_err(|e| failure!("the control socket broke: {e}"))?;
    line!(out, "waiting for incoming connection on {at}");
    passive_at(settings, backend, listener, out)
}

fn passive_at<B: Backend>(
    settings: &Settings,
    backend: Option<B>,
    listener: TcpListener,
    out: Out,
) -> Result<Seen, Failure> {
    let (mut control, at, peer) = control::accept(&listener)?;
    drop(listener);
    line!(out, "accepted connection from {peer} on {at}");
    let offer = control::receive_offer(&mut control, peer)?;
    if offer.json {
        let go = control::wait_go(&mut control)?;
        control::answer_go(&mut control, go, true)?;
        return Err(failure!(
            "{peer} asks to exchange options as JSON, which only rds-stress 2.3.9 and later can: leave out --disable-inq, --always-bursty and --sync-always-bursty there"
        ));
    }
    let own = settings.own.unwrap_or(at.ip());
    let block = &offer.block;
    // The active side's control socket is bound to its RDS address. Another one may belong to somebody who has not asked for
    // traffic.
    if block.receive_addr != peer.ip() && block.tasks != 0 && block.depth <= MAX_DEPTH {
        let claimed = block.receive_addr;
        return Err(failure!(
            "{peer} asks for traffic to {claimed}, not to itself: give -r {claimed} there, and reach this side without address translation"
        ));
    }
    let session = Session::new(Role::Passive, block, own, settings.header).map_err(|reason| {
        let version = offer.version.map(|v| format!(" {v}")).unwrap_or_default();
        failure!("{peer} asks for what cannot be ({reason}): correct its options, or, if that is not rds-stress{version}, keep it off port {}", settings.port)
    })?;
    if block.async_sends {
        line!(
            Out::Stderr,
            "rds-stress: {peer} asks for --async, which concerns Oracle's kernels only: ignored on this side"
        );
    }
    start_tracing(session.tracing);
    let backend = match backend {
        Some(backend) => backend,
        None => B::open(own, Role::Passive, settings)?,
    };
    let mut tasks = bind(&backend, &session, settings, out)?;
    let go = control::wait_go(&mut control)?;
    control::answer_go(&mut control, go, false)?;
    connect(&backend, &session, &mut tasks, &control)?;
    announce(&settings.local, out);
    let summary = run(&session, &settings.local, &backend, tasks, control, out)?;
    Ok((session, summary))
}

/// Connects to the passive side at `host` and decides what both do.
///
/// # Errors
/// No run took place.
pub fn active<B: Backend>(settings: &Settings, offer: &Offer, host: &str, out: Out) -> Result<Seen, Failure> {
    let passive = resolve(host, settings.own)?;
    if settings.own == Some(passive) {
        return Err(failure!(
            "{passive} is the address of both sides: two nodes need two addresses; give this side another one with -r, or use --loopback"
        ));
    }
    if offer.block.show_params {
        show_params(offer, passive, settings, out);
    }
    start_tracing(offer.block.tracing);
    let backend = settings.own.map(|own| B::open(own, Role::Active, settings)).transpose()?;
    let at = SocketAddr::new(passive, settings.port);
    let control = control::connect(settings.own, at, offer.block.connect_retries, out)?;
    active_over(settings, offer, backend, control, passive, out)
}

fn active_over<B: Backend>(
    settings: &Settings,
    offer: &Offer,
    backend: Option<B>,
    mut control: TcpStream,
    passive: IpAddr,
    out: Out,
) -> Result<Seen, Failure> {
    let own = match settings.own {
        Some(own) => own,
        None => control.local_addr().map_err(|e| failure!("the control connection broke: {e}"))?.ip(),
    };
    let block = offer.block(passive, own, settings.header);
    let session = Session::new(Role::Active, &block, own, settings.header).map_err(Failure::new)?;
    let backend = match backend {
        Some(backend) => backend,
        None => B::open(own, Role::Active, settings)?,
    };
    control::send_block(&mut control, &block, &settings.peer_version)?;
    let mut tasks = bind(&backend, &session, settings, out)?;
    control::go(&mut control)?;
    connect(&backend, &session, &mut tasks, &control)?;
    announce(&settings.local, out);
    let summary = run(&session, &settings.local, &backend, tasks, control, out)?;
    explain_silence(&session, &summary, &backend, settings);
    Ok((session, summary))
}

/// Tasks that can receive, here or in processes of their own.
fn bind<B: Backend>(
    backend: &B,
    session: &Session,
    settings: &Settings,
    out: Out,
) -> Result<Tasks<B::Port>, Failure> {
    if settings.node.processes {
        return Processes::start(B::CHOICE, session, settings, out).map(Tasks::Processes);
    }
    backend.bind(session, 0..session.tasks, out).map(Tasks::Threads)
}

/// What the backend must do before the tasks begin. Those that can serve several processes have nothing to do.
fn connect<B: Backend>(
    backend: &B,
    session: &Session,
    tasks: &mut Tasks<B::Port>,
    control: &TcpStream,
) -> Result<(), Failure> {
    match tasks {
        Tasks::Threads(ports) => backend.connect(session, ports, control),
        Tasks::Processes(_) => Ok(()),
    }
}

/// Where a run of zeros usually comes from: the control connection was made, that of RDS was not.
fn explain_silence<B: Backend>(session: &Session, summary: &Summary, backend: &B, settings: &Settings) {
    let silent = summary.counts.acked == 0 && summary.counts.rx == 0;
    if silent && !summary.elapsed.is_zero() && summary.failure.is_none() {
        let what = backend.silence(session, settings);
        line!(Out::Stderr, "rds-stress: nothing came back in the measured time: {what}");
    }
}

/// Both sides in this process: the passive one at 127.0.0.1, the active one, which prints, at 127.0.0.2.
///
/// # Errors
/// No run took place.
pub fn loopback<B: Backend>(settings: &Settings, offer: &Offer, out: Out) -> Result<Seen, Failure> {
    let (passive_ip, active_ip) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
    if offer.block.show_params {
        show_params(offer, passive_ip, settings, out);
    }
    start_tracing(offer.block.tracing);
    let shared = Local { ends_together: true, ..settings.local.clone() };
    // One of them is enough for what concerns the process.
    let quiet = Local { interruptible: false, report_cpu: false, abort_after: 0, ..shared.clone() };
    let passive = Settings { own: Some(passive_ip), local: quiet, ..settings.clone() };
    let active = Settings { own: Some(active_ip), local: shared, ..settings.clone() };
    let passive_backend = B::open(passive_ip, Role::Passive, settings)?;
    let active_backend = B::open(active_ip, Role::Active, settings)?;
    // Any free port: nobody else has to find it.
    let listener = control::listen(Some(passive_ip), 0)?;
    let at = listener.local_addr().map_err(|e| failure!("the control socket broke: {e}"))?;
    let control = control::connect(Some(active_ip), at, 0, out)?;
    thread::scope(|scope| {
        let other = scope.spawn(move || passive_at(&passive, Some(passive_backend), listener, Out::Nowhere));
        let seen = active_over(&active, offer, Some(active_backend), control, passive_ip, out);
        let other =
            other.join().map_err(|_| failure!("the passive side panicked: this is a fault of rds-stress"))?;
        let (session, mut summary) = match (seen, &other) {
            (Ok(seen), _) => seen,
            (Err(echo), Err(reason)) if echo.echo => return Err(reason.clone()),
            (Err(reason), _) => return Err(reason),
        };
        match other {
            Ok((_, passive)) => {
                summary.verify_errors += passive.verify_errors;
                summary.failure = summary.failure.or(passive.failure);
            }
            Err(reason) => summary.failure = Some(reason),
        }
        Ok((session, summary))
    })
}

fn resolve(host: &str, own: Option<IpAddr>) -> Result<IpAddr, Failure> {
    let fits = |a: &IpAddr| own.is_none_or(|own| own.is_ipv4() == a.is_ipv4());
    let mut addresses = (host, 0).to_socket_addrs().map_err(|e| {
        failure!("'{host}' is no host that can be found ({e}): give -s an address or a known name")
    })?;
    addresses.find_map(|a| Some(a.ip().to_canonical()).filter(fits)).ok_or_else(|| {
        failure!("'{host}' has no address of the family of -r: give both sides IPv4 or both IPv6 addresses")
    })
}

fn show_params(offer: &Offer, passive: IpAddr, settings: &Settings, out: Out) {
    let block = offer.block(passive, passive, settings.header);
    line!(out, "Number of tasks: {}", block.tasks);
    line!(out, "Requests outstanding for each pair of tasks: {}", block.depth);
    line!(out, "Request size: {} bytes", block.req_size);
    line!(out, "Ack size: {} bytes", block.ack_size);
    line!(out, "RDMA size: {} bytes", block.rdma_size);
    line!(
        out,
        "RDMA options: use_once {}, use_get_mr {}, use_fence {}, cache_mrs {}, alignment {}, buffers {}, mode {} (without effect over TCP)",
        u8::from(block.rdma_use_once),
        u8::from(block.rdma_use_get_mr),
        u8::from(block.rdma_use_fence),
        u8::from(block.rdma_cache_mrs),
        block.rdma_alignment,
        block.rdma_vector,
        block.rw_mode
    );
}

/// Lines of the engine on stderr: what it warns of, with `-V` everything. `RUST_LOG` chooses others.
pub(crate) fn start_tracing(all: bool) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(if all { "debug" } else { "warn" }));
    let stderr = std::io::stderr;
    let ansi = stderr().is_terminal();
    // Both sides of --loopback ask for it: the second time it is there already.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(stderr).try_init();
}
