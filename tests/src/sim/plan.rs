//! What a seed draws before it begins: hosts, their settings, their sockets, and when which fault happens.

use std::net::IpAddr;
use std::time::Duration;

use fastrand::Rng;
use rds_core::wire::Capabilities;
use rds_core::zerocopy::{Mode, WhenFull};

use super::coverage::Fault;
use super::ctx::HostKind;
use super::net::{MS, NOTIFICATION, Nanos, SEC, Wire, ZeroCopy};
use super::own::{Sending, Temper};
use super::world::OwnSpec;

/// One host of a plan.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// Its address.
    pub address: IpAddr,
    /// What runs there.
    pub kind: HostKind,
    /// Settings, for own hosts.
    pub spec: OwnSpec,
    /// Habits, for own hosts.
    pub temper: Temper,
    /// Ports that its programs bind: send buffer, receive buffer, whether every message is tracked.
    pub sockets: Vec<(u16, u64, u64, bool)>,
    /// Messages that its programs send before the faults end.
    pub quota: u32,
    /// Whether it offers as many lanes in every life.
    pub fixed_lanes: bool,
}

/// One fault of a plan.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// When it begins.
    pub at: Nanos,
    /// When it ends, if it lasts.
    pub until: Nanos,
    /// What it is.
    pub kind: Fault,
    /// A host, by chance.
    pub host: usize,
    /// Another one.
    pub other: usize,
}

/// What a seed makes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number that it is drawn from.
    pub seed: u64,
    /// The net.
    pub wire: Wire,
    /// The hosts; the last is a stranger.
    pub hosts: Vec<HostPlan>,
    /// The faults, in order of time.
    pub faults: Vec<FaultPlan>,
    /// Kinds that may stand in for one that cannot be done.
    pub instead: Vec<Fault>,
    /// When faults end and everything must come to rest.
    pub calm_at: Nanos,
}

/// Messages that each seed carries at least.
pub const MESSAGES: u32 = 1000;
/// Faults that each seed has at least.
pub const FAULTS: usize = 5;

/// Faults after which all lanes between two hosts are made anew.
const TAKES_ALL_LANES: [Fault; 6] =
    [Fault::CutLong, Fault::Restart, Fault::Goodbye, Fault::PowerLoss, Fault::ClockBack, Fault::Freeze];

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed_5eed_5eed_5eed);
        let rng = &mut rng;
        let wire = Wire {
            latency: rng.u64(20_000..2 * MS),
            jitter: rng.u64(0..2 * MS),
            send_buffer: pick(rng, &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]),
            receive_buffer: pick(rng, &[4 << 10, 32 << 10, 128 << 10, 1 << 20]),
        };
        let mut hosts = Self::draw_hosts(rng);
        let calm_at = SEC * rng.u64(20..110);
        let mut faults = Self::draw_faults(rng, hosts.len() - 1, calm_at);
        for f in faults.iter_mut().filter(|f| f.kind == Fault::NeverReads && hosts[f.host].kind.is_kernel()) {
            // No kernel stands still for so long.
            (f.kind, f.until) = (Fault::Freeze, f.until.min(f.at + 10 * SEC));
        }
        if faults.iter().any(|f| TAKES_ALL_LANES.contains(&f.kind)) {
            // A kernel that does not answer pings never tells a new life of its peer how many lanes it uses.
            hosts.iter_mut().filter(|h| h.kind.is_kernel()).for_each(|h| h.spec.ping_enable = true);
        }
        let mut instead = vec![Fault::Reset, Fault::Cancel, Fault::Rebind, Fault::StopReading];
        rng.shuffle(&mut instead);
        Self { seed, wire, hosts, faults, instead, calm_at }
    }

    fn draw_hosts(rng: &mut Rng) -> Vec<HostPlan> {
        let count = rng.usize(2..=5);
        // One family, or with enough hosts two of each at least.
        let v6_from = match rng.u8(0..4) {
            0 => 0,
            1 if count >= 4 => 2,
            _ => count,
        };
        let mut order: Vec<u8> = (1..=count as u8).collect();
        rng.shuffle(&mut order);
        let max_message = pick(rng, &[64 << 10, 64 << 10, 128 << 10, 1 << 20]);
        let mut hosts = Vec::new();
        for (i, place) in order.iter().enumerate() {
            let v6 = i >= v6_from;
            let kind = match rng.u8(0..20) {
                // The first of each family is real, so that there is always something to test.
                _ if i == 0 || i == v6_from => HostKind::Own,
                0..=2 => HostKind::OldKernel,
                3..=5 => HostKind::NewKernel,
                _ => HostKind::Own,
            };
            hosts.push(HostPlan {
                address: address(v6, *place),
                kind,
                spec: Self::draw_spec(rng, max_message),
                temper: Self::draw_temper(rng),
                sockets: Self::draw_sockets(rng),
                quota: MESSAGES / count as u32 + rng.u32(1..100),
                fixed_lanes: false,
            });
        }
        let kernels = hosts.iter().any(|h| h.kind.is_kernel());
        for h in hosts.iter_mut().filter(|h| !h.kind.is_kernel() && kernels) {
            // Where neither side answers pings, nobody learns how many lanes there are.
            h.spec.ping_enable = true;
            h.fixed_lanes = true; // kernels do not survive that a peer offers fewer than before
        }
        hosts.push(HostPlan {
            address: address(v6_from == 0, 0),
            kind: HostKind::Stranger,
            spec: OwnSpec::default(),
            temper: Self::draw_temper(rng),
            sockets: Vec::new(),
            quota: 0,
            fixed_lanes: true,
        });
        hosts
    }

    fn draw_spec(rng: &mut Rng, max_message: u32) -> OwnSpec {
        let capabilities = match rng.u8(0..20) {
            0 => Capabilities::default(),
            1 => Capabilities::ACKS,
            _ => Capabilities::ACKS.with(Capabilities::WINDOW),
        };
        let most = u64::from(max_message);
        OwnSpec {
            lanes: pick(rng, &[1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8]),
            // What old kernels do with several lanes under faults is theirs.
            old_kernel_lanes: 1,
            capabilities,
            max_message,
            receive_budget: pick(rng, &[most, 2 * most, 4 * most, 256 << 20]),
            window: pick(rng, &[64 << 10, 64 << 10, 256 << 10, 4 << 20]),
            port_hard_limit: pick(rng, &[1, 4, 16]),
            handshake_timeout: Duration::from_millis(rng.u64(2_000..10_000)),
            identity_grace: Duration::from_millis(rng.u64(200..1500)),
            ping_enable: rng.u8(..) >= 40,
            max_handshakes: pick(rng, &[16, 32, 256]),
            max_peers: 64,
            sending: Self::draw_sending(rng),
        }
    }

    fn draw_sending(rng: &mut Rng) -> Sending {
        let kernel = ZeroCopy {
            memlock: pick(rng, &[None, None, Some(8 << 20), Some(256 << 10), Some(64 << 10), Some(0)]),
            optmem: pick(rng, &[131_072, 131_072, 20_480, 4096, 2048, 512]),
            notification: pick(rng, &[NOTIFICATION, NOTIFICATION, 2 * NOTIFICATION]),
            copies: pick(rng, &[0, 20, 128, 255]),
            late: pick(rng, &[0, MS, 50 * MS, SEC]),
            keeps: 30,
            device: pick(rng, &[0, 0, MS, SEC]),
            joins: pick(rng, &[0, 60, 200]),
            prompt: pick(rng, &[0, 30, 200]),
            reset: pick(rng, &[0, 0, 1]),
            first_call: match rng.u8(0..3) {
                0 => 0u32.wrapping_sub(rng.u32(1..40)),
                _ => 0,
            },
        };
        Sending {
            mode: pick(rng, &[Mode::Off, Mode::On, Mode::On, Mode::Auto]),
            when_full: pick(rng, &[WhenFull::Copy, WhenFull::Copy, WhenFull::Wait, WhenFull::Error]),
            lends: 180,
            kernel,
        }
    }

    fn draw_temper(rng: &mut Rng) -> Temper {
        Temper {
            skip: pick(rng, &[0, 10, 80]),
            nibble: pick(rng, &[0, 5, 60]),
            partial: pick(rng, &[0, 10, 100]),
            hold: pick(rng, &[0, 10, 60]),
            target: pick(rng, &[0, 50, 255]),
            reverse: pick(rng, &[0, 0, 60, 128]),
        }
    }

    fn draw_sockets(rng: &mut Rng) -> Vec<(u16, u64, u64, bool)> {
        (0..rng.u16(1..=4))
            .map(|i| {
                let send = pick(rng, &[4 << 10, 64 << 10, 256 << 10, 1 << 20]);
                let receive = pick(rng, &[1, 2 << 10, 16 << 10, 256 << 10, 1 << 20]);
                (4000 + i * 7, send, receive, rng.u8(..) < 200)
            })
            .collect()
    }

    fn draw_faults(rng: &mut Rng, hosts: usize, calm_at: Nanos) -> Vec<FaultPlan> {
        let count = rng.usize(FAULTS..FAULTS + 9);
        let mut faults: Vec<FaultPlan> = (0..count)
            .map(|_| {
                let kind = Fault::ALL[rng.usize(..Fault::ALL.len())];
                let at = rng.u64(calm_at / 20..calm_at * 9 / 10);
                let lasts = match kind {
                    Fault::CutShort | Fault::Refuse => rng.u64(SEC / 10..8 * SEC),
                    Fault::NeverReads => rng.u64(40 * SEC..80 * SEC),
                    Fault::Memlock => rng.u64(SEC / 10..20 * SEC),
                    Fault::CutLong => rng.u64(35 * SEC..60 * SEC),
                    Fault::Restart | Fault::ClockBack => rng.u64(MS..3 * SEC),
                    Fault::Goodbye => rng.u64(SEC..5 * SEC),
                    Fault::PowerLoss => rng.u64(SEC / 10..20 * SEC),
                    Fault::StopReading | Fault::Freeze | Fault::SlowNet => rng.u64(SEC / 10..10 * SEC),
                    Fault::AckStarvation => rng.u64(SEC / 10..SEC),
                    Fault::SilentStranger | Fault::Flood => rng.u64(SEC..15 * SEC),
                    _ => 0,
                };
                let host = rng.usize(..hosts);
                let other = (host + rng.usize(1..hosts)) % hosts;
                FaultPlan { at, until: (at + lasts).min(calm_at), kind, host, other }
            })
            .collect();
        faults.sort_by_key(|f| f.at);
        faults
    }
}

/// The address of the `place`th host; 0 is smaller than all others.
fn address(v6: bool, place: u8) -> IpAddr {
    if v6 {
        IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, u16::from(place) + 1])
    } else {
        IpAddr::from([10, 77, 0, place + 1])
    }
}
