//! The simulator's model of kernels against recordings of real ones: one side's recorded bytes go in, and the model must
//! write what the other side's kernel wrote: the same messages on each connection, with their order, numbers, flags and
//! extensions. How many congestion maps there are, and what TCP had acknowledged when, was chance in the recordings.

use bytes::Bytes;
use rds_core::wire::{CongestionMap, Decoder, Flags, HandshakeExtensions, Header, Item};
use rds_tests::captures::{Direction, scenario};
use rds_tests::sim::net::{End, MS, SEC};
use rds_tests::sim::pair::wire;
use rds_tests::sim::stranger::Manner;
use rds_tests::sim::world::{Host, World};

/// The lower address.
const LOW: usize = 0;
/// The higher address.
const HIGH: usize = 1;
const KERNELS: [&str; 3] = ["6.1", "6.12", "7.2"];

/// What is compared of a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    sequence: u64,
    ports: (u16, u16),
    flags: u8,
    lanes: Option<u16>,
    has_generation: bool,
    source_port_lane: bool,
    payload: Vec<u8>,
}

/// Messages of a stream, maps aside, and the maps.
fn read(bytes: &[u8]) -> (Vec<Shape>, Vec<CongestionMap>) {
    let (mut shapes, mut maps) = (Vec::new(), Vec::new());
    let (mut decoder, mut rest) = (Decoder::new(), bytes);
    while let Ok(Item::Message { header, payload }) = decoder.next(&mut rest, u32::MAX) {
        assert_eq!((header.ack, header.csum, header.padding), (0, 0, [0; 4]), "as kernels send: {header:?}");
        if header.is_congestion_map() {
            assert_eq!(header.sequence, 0);
            maps.push(CongestionMap::decode(payload).expect("a map's length"));
        } else {
            shapes.push(shape(&header, payload));
        }
    }
    (shapes, maps)
}

fn shape(h: &Header, payload: &[u8]) -> Shape {
    let said = HandshakeExtensions::decode(&h.extensions);
    Shape {
        sequence: h.sequence,
        ports: (h.sport, h.dport),
        flags: h.flags.0,
        lanes: said.lanes,
        has_generation: said.generation.is_some(),
        source_port_lane: said.source_port_lane,
        payload: payload.to_vec(),
    }
}

/// Lists of messages, one a connection that carried any; sorted, as connections have no names.
fn lists<'a>(streams: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<Shape>> {
    // A handshake message that comes again depends on when the sender noticed TCP's acknowledgement of it.
    let chance = |s: &Shape| s.flags & Flags::RETRANSMITTED.0 != 0 && s.lanes.is_some();
    let mut all: Vec<Vec<Shape>> = streams
        .map(|b| read(b).0.into_iter().filter(|s| !chance(s)).collect())
        .filter(|l: &Vec<_>| !l.is_empty())
        .collect();
    all.sort();
    all
}

/// The payload of the recordings' programs.
fn payload(q: u64, len: usize) -> Bytes {
    let mut bytes: Vec<u8> =
        (0..len as u64).map(|i| (31 * q + 7 * i + (i >> 8) + 13 * (i >> 16)) as u8).collect();
    if len >= 16 {
        bytes[..4].copy_from_slice(b"KPR1");
        bytes[4..8].copy_from_slice(&(len as u32).to_be_bytes());
        bytes[8..16].copy_from_slice(&q.to_be_bytes());
    }
    bytes.into()
}

/// A model of one side and a player of the other side's bytes.
struct Rig {
    world: World,
    kernel: &'static str,
    name: &'static str,
    model: usize,
    player: usize,
}

impl Rig {
    fn new(kernel: &'static str, name: &'static str, model: usize) -> Self {
        let mut world = World::new(7, wire());
        for host in [LOW, HIGH] {
            let address = [10, 77, 0, 2 + host as u8].into();
            if host == model {
                world.add_kernel(address, kernel == "7.2");
            } else {
                world.add_stranger(address);
                world.cx.net.listen(host, true);
            }
        }
        world.cx.watch.tap = Some(Default::default());
        Self { world, kernel, name, model, player: 1 - model }
    }

    fn is_new(&self) -> bool {
        self.kernel == "7.2"
    }

    /// A program binds a port of the model's; `odd` is the path of an old kernel's first socket.
    fn bind(&mut self, port: u16, receive: u64, odd: Option<u8>) {
        let World { hosts, cx, .. } = &mut self.world;
        let Host::Kernel(k) = &mut hosts[self.model] else { unreachable!("it is a kernel") };
        k.close_socket(cx, port);
        k.bind(cx, port, 4 << 20, receive);
        if !k.new {
            k.sockets.get_mut(&port).expect("bound above").odd_path = odd;
        }
    }

    /// A program of the model's sends messages `first` to `first + sizes.len()`.
    fn send(&mut self, port: u16, dport: u16, first: u64, sizes: &[usize]) {
        let World { hosts, cx, .. } = &mut self.world;
        let Host::Kernel(k) = &mut hosts[self.model] else { unreachable!("it is a kernel") };
        for (q, len) in sizes.iter().enumerate() {
            k.send_raw(cx, port, self.player, dport, payload(first + q as u64, *len));
        }
        self.world.settle_calls(self.model);
        self.world.run_for(20 * MS);
    }

    /// Recorded bytes of the player's side.
    fn recorded(&self, connection: u32) -> Vec<u8> {
        let from = if self.player == LOW { Direction::ClientToServer } else { Direction::ServerToClient };
        let streams = scenario(self.kernel, self.name);
        let found = streams.into_iter().find(|s| s.connection == connection && s.direction == from);
        found.unwrap_or_else(|| panic!("{}/{}: connection {connection}", self.kernel, self.name)).bytes
    }

    fn player(&mut self) -> (&mut rds_tests::sim::stranger::Stranger, &mut rds_tests::sim::ctx::Ctx) {
        let World { hosts, cx, .. } = &mut self.world;
        let Host::Stranger(s) = &mut hosts[self.player] else { unreachable!("it is the player") };
        (s, cx)
    }

    /// The player says recorded bytes on a connection.
    fn say(&mut self, end: End, connection: u32) {
        let bytes = self.recorded(connection);
        let (s, cx) = self.player();
        s.say(cx, end, &bytes);
        self.world.settle_calls(self.player);
        self.world.run_for(50 * MS);
    }

    /// The player dials.
    fn dial(&mut self, lane: u8) -> End {
        let new = self.is_new();
        let (to, (s, cx)) = (self.model, self.player());
        let end = s.dial_lane(cx, to, new.then_some(lane), Manner::Silent);
        self.world.run_for(20 * MS);
        end
    }

    /// The player's `n`th accepted connection.
    fn accepted(&mut self, n: usize) -> End {
        self.player().0.accepted[n]
    }

    /// How many connections the player has accepted.
    fn count(&mut self) -> usize {
        self.player().0.accepted.len()
    }

    fn now(&self) -> u64 {
        self.world.cx.now
    }

    /// How much the model wrote towards this end of the player's.
    fn written(&self, end: End) -> usize {
        self.world.cx.watch.tap.as_ref().and_then(|t| t.get(&end.peer())).map_or(0, Vec::len)
    }

    /// Bytes that the model wrote on each connection.
    fn wrote(&self) -> Vec<&[u8]> {
        let tap = self.world.cx.watch.tap.as_ref().expect("set in new");
        tap.iter()
            .filter(|(end, _)| self.world.cx.net.host_of(**end) == self.model)
            .map(|(_, b)| &b[..])
            .collect()
    }

    /// The model wrote what the recorded kernel did, on connections that carried messages.
    #[track_caller]
    fn compare(&self) {
        let from = if self.model == LOW { Direction::ClientToServer } else { Direction::ServerToClient };
        let streams = scenario(self.kernel, self.name);
        let recorded = lists(streams.iter().filter(|s| s.direction == from).map(|s| &s.bytes[..]));
        let model = lists(self.wrote().into_iter());
        assert!(!recorded.is_empty(), "{}/{}: nothing to compare", self.kernel, self.name);
        assert_eq!(
            model, recorded,
            "{}/{} as host {}: model (left), recording (right)",
            self.kernel, self.name, self.model
        );
        let first = self.wrote().into_iter().find(|b| !read(b).0.is_empty()).expect("it wrote messages");
        assert!(
            Header::decode(first[..48].try_into().expect("a header")).is_congestion_map(),
            "a map comes first"
        );
    }
}

/// The path of an old kernel's first socket in the recording: any but the first if its messages are not on connection 0.
fn odd(kernel: &str, zero: &[&str]) -> Option<u8> {
    Some(if zero.contains(&kernel) { 0 } else { 3 })
}

#[test]
fn the_lower_address_sets_up_eight_paths_and_sends() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "connect-low", LOW);
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &[13]);
        let first = rig.accepted(0);
        rig.say(first, 0);
        assert_eq!(rig.count(), 8, "eight connections");
        rig.compare();
    }
}

#[test]
fn the_higher_address_answers_and_delivers() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "connect-low", HIGH);
        rig.bind(4000, 1 << 20, None);
        let first = rig.dial(0);
        rig.say(first, 0);
        if !rig.is_new() {
            let data = if kernel == "6.1" { 3 } else { 5 };
            let end = rig.dial(data as u8);
            rig.say(end, data);
        }
        rig.compare();
        assert_eq!(rig.world.kernel(HIGH).sockets[&4000].queued, 13);
    }
}

#[test]
fn the_higher_address_pokes_and_sends_when_dialled() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "connect-high", HIGH);
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &[13]);
        assert_eq!(rig.count(), 1, "it poked once");
        assert!(rig.wrote().is_empty(), "without a byte");
        let first = rig.dial(0);
        rig.say(first, 1);
        for lane in 1..8 {
            rig.dial(lane);
        }
        rig.compare();
    }
}

#[test]
fn the_lower_address_closes_what_comes_and_dials_back() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "connect-high", LOW);
        rig.bind(4000, 1 << 20, None);
        rig.dial(0);
        assert_eq!(rig.count(), 1, "it dialled back");
        let back = rig.accepted(0);
        rig.say(back, 1);
        assert_eq!(rig.count(), 8);
        if !rig.is_new() {
            let end = rig.accepted(1);
            rig.say(end, if kernel == "6.1" { 3 } else { 6 });
        }
        rig.compare();
        assert_eq!(rig.world.kernel(LOW).sockets[&4000].queued, 13);
    }
}

#[test]
fn pings_go_out_and_are_answered() {
    for kernel in KERNELS {
        let other = match kernel {
            "6.1" => 1,
            "6.12" => 7,
            _ => 6,
        };
        let mut rig = Rig::new(kernel, "ping", LOW);
        rig.bind(6000, 1 << 20, None);
        rig.send(6000, 0, 0, &[0]);
        let first = rig.accepted(0);
        rig.say(first, 0);
        rig.send(6000, 0, 0, &[0]);
        rig.send(6000, 0, 0, &[0]);
        rig.compare();

        let mut rig = Rig::new(kernel, "ping", HIGH);
        let first = rig.dial(0);
        rig.say(first, 0);
        let end = rig.dial(1);
        rig.say(end, other);
        rig.compare();
    }
}

#[test]
fn messages_of_every_small_size_go_back_to_back() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "sizes", LOW);
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &(0..65).collect::<Vec<_>>());
        let first = rig.accepted(0);
        rig.say(first, 0);
        rig.compare();
    }
}

#[test]
fn a_port_that_nobody_reads_is_congested_until_it_is_read() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "congestion", HIGH);
        rig.bind(4000, 16384, None);
        let first = rig.dial(0);
        rig.say(first, 0);
        rig.compare();
        let last = |rig: &Rig| {
            rig.wrote().iter().map(|b| read(b).1).max_by_key(Vec::len).expect("a stream").last().cloned()
        };
        assert_eq!(last(&rig).expect("a map").iter().collect::<Vec<_>>(), [4000]);
        rig.world.kernel(HIGH).take(4000, 33);
        rig.world.kick(HIGH);
        rig.world.run_for(20 * MS);
        assert_eq!(last(&rig).expect("a map").len(), 1, "14,000 bytes are not below half of 16,384");
        rig.world.kernel(HIGH).take(4000, 3);
        rig.world.kick(HIGH);
        rig.world.run_for(20 * MS);
        assert!(last(&rig).expect("a map").is_empty(), "8,000 bytes are");
        // The recorded kernels said the same, in this order.
        let streams = scenario(kernel, "congestion");
        let main = streams.iter().find(|s| s.connection == 0 && s.direction == Direction::ServerToClient);
        let maps = read(&main.expect("recorded").bytes).1;
        assert!(maps.iter().any(|m| m.iter().eq([4000])) && maps.last().expect("maps").is_empty());
    }
}

#[test]
fn the_lower_address_sends_again_after_its_reset() {
    for kernel in ["6.1", "7.2"] {
        let mut rig = Rig::new(kernel, "reset-low", LOW);
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &[32; 3]);
        let first = rig.accepted(0);
        rig.say(first, 0);
        let now = rig.now();
        rig.world.cx.net.cut(now, LOW, HIGH);
        rig.bind(5000, 1 << 20, None);
        rig.send(5000, 4000, 3, &[32; 3]);
        let now = rig.now();
        rig.world.cx.net.inject_rst(now, first.peer());
        rig.world.settle_calls(LOW);
        rig.world.run_for(2 * SEC);
        let before = rig.count();
        let now = rig.now();
        rig.world.cx.net.heal(now, LOW, HIGH);
        rig.world.run_for(4 * SEC);
        let again = rig.accepted(before);
        if rig.is_new() {
            rig.say(again, 9);
        }
        rig.compare();
    }
}

#[test]
fn the_higher_address_waits_after_its_reset_and_sends_again_when_dialled() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "reset-high", HIGH);
        rig.bind(5000, 1 << 20, odd(kernel, &["6.12"]));
        rig.send(5000, 4000, 0, &[32; 3]);
        let first = rig.dial(0);
        rig.say(first, 1);
        for lane in 1..8 {
            rig.dial(lane);
        }
        let now = rig.now();
        rig.world.cx.net.cut(now, LOW, HIGH);
        rig.bind(5000, 1 << 20, None);
        rig.send(5000, 4000, 3, &[32; 3]);
        let now = rig.now();
        rig.world.cx.net.inject_rst(now, first.peer());
        rig.world.settle_calls(HIGH);
        rig.world.run_for(20 * SEC);
        let now = rig.now();
        rig.world.cx.net.heal(now, LOW, HIGH);
        rig.world.run_for(10 * SEC);
        let again = rig.dial(0);
        match kernel {
            "6.12" => rig.say(again, 9),
            "7.2" => rig.say(again, 10),
            _ => {}
        }
        rig.compare();
    }
}

#[test]
fn connections_that_were_reset_at_both_ends_are_made_again() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "reset-both", LOW);
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &[32; 3]);
        let first = rig.accepted(0);
        rig.say(first, 0);
        let before = rig.count();
        let now = rig.now();
        for n in 0..before {
            let end = rig.accepted(n);
            for end in [end, end.peer()] {
                rig.world.cx.net.inject_rst(now, end);
            }
        }
        rig.world.settle_calls(LOW);
        rig.world.run_for(SEC);
        assert_eq!(rig.count(), 2 * before);
        if rig.is_new() {
            let ends: Vec<End> = (before..2 * before).map(|n| rig.accepted(n)).collect();
            let end = ends.into_iter().find(|e| rig.written(*e) > 8240);
            rig.say(end.expect("one carries the handshake"), 8);
        }
        rig.bind(5000, 1 << 20, None);
        rig.send(5000, 4000, 3, &[32; 3]);
        rig.compare();
    }
}

#[test]
fn what_a_crashed_peer_had_not_acknowledged_is_sent_to_its_next_life() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "crash-receiver", LOW);
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &[32; 3]);
        let first = rig.accepted(0);
        rig.say(first, 0);
        let now = rig.now();
        rig.world.cx.net.power_off(now, HIGH);
        rig.bind(5000, 1 << 20, None);
        rig.send(5000, 4000, 3, &[32; 3]);
        rig.world.run_for(35 * SEC);
        let before = rig.count();
        rig.world.cx.net.power_on(HIGH);
        rig.world.run_for(10 * SEC);
        let ends: Vec<End> = (before..rig.count()).map(|n| rig.accepted(n)).collect();
        let again = ends.into_iter().max_by_key(|e| rig.written(*e)).expect("it dialled again");
        rig.say(again, 8);
        rig.compare();
    }
}

#[test]
fn a_kernel_that_crashed_counts_from_one_again() {
    let mut rig = Rig::new("7.2", "crash-sender", LOW);
    rig.bind(5000, 1 << 20, None);
    rig.send(5000, 4000, 0, &[32; 3]);
    let first = rig.accepted(0);
    rig.say(first, 0);
    rig.world.stop(LOW, true);
    rig.world.run_for(SEC);
    rig.world.start(LOW, 0);
    let before = rig.count();
    rig.bind(5000, 1 << 20, None);
    rig.send(5000, 4000, 3, &[32; 3]);
    let again = rig.accepted(before);
    rig.say(again, 9);
    rig.compare();
}

#[test]
fn a_kernel_that_loaded_the_module_again_counts_from_one_again() {
    for kernel in ["6.1", "7.2"] {
        let mut rig = Rig::new(kernel, "unload", LOW);
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &[32]);
        let first = rig.accepted(0);
        rig.say(first, 0);
        rig.world.stop(LOW, false);
        rig.world.run_for(SEC);
        rig.world.start(LOW, 0);
        let before = rig.count();
        rig.bind(5000, 1 << 20, Some(0));
        rig.send(5000, 4000, 1, &[32]);
        if rig.is_new() {
            let again = rig.accepted(before);
            rig.say(again, 9);
        }
        rig.compare();
    }
}

#[test]
fn cancelled_messages_leave_a_gap_in_the_numbers() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "cancel", LOW);
        rig.world.cx.net.wire.send_buffer = 64 << 10;
        rig.bind(5000, 1 << 20, odd(kernel, &[]));
        rig.send(5000, 4000, 0, &[32; 2]);
        let first = rig.accepted(0);
        rig.say(first, 0);
        let now = rig.now();
        rig.world.cx.net.cut(now, LOW, HIGH);
        rig.bind(5000, 1 << 20, None);
        rig.send(5000, 4000, 2, &[3000; 60]);
        rig.bind(5000, 1 << 20, None); // closing the old socket cancels
        let now = rig.now();
        rig.world.cx.net.heal(now, LOW, HIGH);
        rig.world.run_for(SEC);
        rig.send(5000, 4000, 62, &[32; 2]);
        // How many of the sixty had begun was chance; what has a number and what has none was not.
        let numbers = |streams: Vec<&[u8]>| {
            let lists = lists(streams.into_iter());
            let main = lists.into_iter().max_by_key(Vec::len).expect("a stream");
            let data: Vec<u64> =
                main.iter().filter(|s| s.payload.len() == 3000).map(|s| s.sequence).collect();
            let last: Vec<u64> = main.iter().rev().take(2).map(|s| s.sequence).collect();
            assert!(data.windows(2).all(|w| w[1] == w[0] + 1) && data.len() < 60, "{data:?}");
            (data[0], last)
        };
        let streams = scenario(kernel, "cancel");
        let recorded =
            streams.iter().filter(|s| s.direction == Direction::ClientToServer).map(|s| &s.bytes[..]);
        assert_eq!(
            numbers(rig.wrote()),
            numbers(recorded.collect()),
            "{kernel}: model (left), recording (right)"
        );
    }
}

#[test]
fn a_refused_kernel_tries_again_within_a_second_for_ever() {
    for kernel in KERNELS {
        let mut rig = Rig::new(kernel, "refused", LOW);
        rig.world.cx.net.listen(HIGH, false);
        rig.bind(5000, 1 << 20, odd(kernel, &["6.12"]));
        rig.send(5000, 4000, 0, &[32; 3]);
        rig.world.run_for(6 * SEC);
        assert_eq!(rig.count(), 0);
        rig.world.cx.net.listen(HIGH, true);
        rig.world.run_for(1100 * MS);
        assert_eq!(rig.count(), 1, "the delay is never above a second");
        let first = rig.accepted(0);
        let attempts = first.link + 1;
        assert!((10..60).contains(&attempts), "{attempts} attempts; the recorded kernels made 20");
        rig.say(first, 19);
        rig.compare();
    }
}
