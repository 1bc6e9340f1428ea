use proptest::prelude::*;

use super::*;

/// The node's side of a port: the rules of `proto::local`, as far as bytes go.
#[derive(Debug, Default)]
struct Node {
    limit: u64,
    used: u64,
    messages: u64,
    congested: bool,
}

impl Node {
    fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Charges a message that was delivered.
    fn delivered(&mut self, len: u64, ledger: &mut Ledger) {
        self.used += len;
        self.messages += 1;
        if self.used > self.limit {
            if !self.congested {
                let consumed = ledger.take_consumed();
                self.consumed(consumed);
            }
            self.congested |= self.used > self.limit;
        }
    }

    fn consumed(&mut self, count: Count) {
        self.used = self.used.checked_sub(count.bytes).expect("no more than was charged");
        self.messages = self.messages.checked_sub(count.messages).expect("no more than was charged");
        if self.used < self.limit / 2 || self.used == 0 {
            self.congested = false;
        }
    }

    fn told(&mut self, report: Report) {
        self.consumed(report.consumed);
        if report.clear {
            self.limit = u64::MAX;
            self.consumed(Count::NONE);
        }
        if let Some(limit) = report.limit {
            self.limit = limit;
            self.consumed(Count::NONE);
        }
    }
}

/// Members by themselves, each with its queue of message lengths.
struct World {
    node: Node,
    ledger: Ledger,
    queues: Vec<(MemberId, u64, Vec<u64>)>,
}

impl World {
    fn new(sharing: Sharing) -> Self {
        Self { node: Node::new(1 << 20), ledger: Ledger::new(sharing, 1 << 20), queues: Vec::new() }
    }

    fn join(&mut self, limit: u64) {
        let (id, report) = self.ledger.join(limit);
        self.node.told(report);
        self.queues.push((id, limit, Vec::new()));
    }

    fn deliver(&mut self, len: u64) {
        match self.ledger.sharing() {
            Sharing::FanOut => {
                self.ledger.deliver_to_all(len);
                self.queues.iter_mut().for_each(|(.., queue)| queue.push(len));
            }
            _ => {
                let id = self.ledger.choose().unwrap();
                let room = |(_, limit, queue): &(MemberId, u64, Vec<u64>)| {
                    i128::from(*limit) - i128::from(queue.iter().sum::<u64>())
                };
                let most = self.queues.iter().map(room).max().unwrap();
                let to = self.queues.iter_mut().find(|(m, ..)| *m == id).unwrap();
                assert_eq!(room(to), most, "the one with most room");
                to.2.push(len);
                self.ledger.deliver_to(id, len);
            }
        }
        self.node.delivered(len, &mut self.ledger);
    }

    fn consume(&mut self, n: usize) {
        let (id, _, queue) = &mut self.queues[n];
        if queue.is_empty() {
            return;
        }
        let bytes = queue.remove(0);
        let report = self.ledger.consume(*id, Count { bytes, messages: 1 });
        self.node.told(report);
    }

    fn leave(&mut self, n: usize) {
        let (id, ..) = self.queues.remove(n);
        let report = self.ledger.leave(id);
        self.node.told(report);
    }

    fn held(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.queues.iter().map(|(_, limit, queue)| (queue.iter().sum(), *limit))
    }

    fn all_full(&self) -> bool {
        self.held().all(|(held, limit)| held >= limit)
    }

    fn any_full(&self) -> bool {
        self.held().any(|(held, limit)| held > limit)
    }
}

#[test]
fn a_stopped_member_of_a_balanced_port_does_not_keep_it_congested_for_the_others() {
    let mut world = World::new(Sharing::Balance);
    world.join(100);
    world.join(100);
    while !world.node.congested {
        world.deliver(30);
    }
    assert!(world.all_full());
    // The first never reads again.
    for _ in 0..50 {
        while !world.queues[1].2.is_empty() {
            world.consume(1);
        }
        assert!(!world.node.congested);
        let before = world.queues[0].2.len();
        for _ in 0..3 {
            world.deliver(30);
            assert!(!world.node.congested, "the second has room");
        }
        world.deliver(30);
        assert!(world.node.congested, "now both are full");
        assert_eq!(world.queues[0].2.len(), before);
    }
}

#[test]
fn small_messages_do_not_pile_up_at_a_stopped_member() {
    let mut world = World::new(Sharing::Balance);
    world.join(1 << 20);
    world.join(1 << 20);
    for _ in 0..1000 {
        world.deliver(0);
        world.consume(1);
    }
    assert!(world.queues[0].2.len() < 5, "{}", world.queues[0].2.len());
}

#[test]
fn fan_out_is_as_fast_as_its_slowest_member_until_that_leaves() {
    let mut world = World::new(Sharing::FanOut);
    world.join(100);
    world.join(1000);
    for _ in 0..4 {
        world.deliver(30);
    }
    assert!(world.node.congested, "the smaller is full");
    (0..4).for_each(|_| world.consume(1));
    assert!(world.node.congested);
    world.leave(0);
    assert!(!world.node.congested);
    assert_eq!((world.node.used, world.node.messages), (0, 0));
}

#[test]
fn who_joins_a_fan_out_port_owes_nothing_of_what_came_before() {
    let mut world = World::new(Sharing::FanOut);
    world.join(1000);
    world.deliver(10);
    world.join(1000);
    world.consume(0);
    assert_eq!((world.node.used, world.node.messages), (0, 0));
    assert!(world.queues[1].2.is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Join(u64),
    Leave(usize),
    Deliver(u64),
    Consume(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (2..300_u64).prop_map(Step::Join),
        1 => (0..8_usize).prop_map(Step::Leave),
        12 => (0..120_u64).prop_map(Step::Deliver),
        9 => (0..8_usize).prop_map(Step::Consume),
    ]
}

fn run(sharing: Sharing, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(sharing);
    world.join(200);
    for step in steps {
        let was = world.node.congested;
        match *step {
            Step::Join(limit) if sharing != Sharing::Exclusive && world.queues.len() < 6 => world.join(limit),
            Step::Leave(n) if world.queues.len() > 1 => world.leave(n % world.queues.len()),
            Step::Deliver(len) => {
                world.deliver(len);
                let full = match sharing {
                    Sharing::Balance => world.all_full(),
                    _ => world.any_full(),
                };
                prop_assert!(!full || world.node.congested, "full and not congested");
                prop_assert!(was || full || !world.node.congested, "congested without being full");
            }
            Step::Consume(n) => {
                let n = n % world.queues.len();
                world.consume(n);
            }
            _ => {}
        }
        let drained = |(held, limit): (u64, u64)| held < limit / 2 || held == 0;
        let free = match sharing {
            Sharing::Balance => world.held().any(drained),
            _ => world.held().all(drained),
        };
        let took = matches!(step, Step::Consume(_) | Step::Leave(_) | Step::Join(_));
        prop_assert!(!(took && free && world.node.congested), "congested although there is room");
        for (id, _, queue) in &world.queues {
            let count = Count { bytes: queue.iter().sum(), messages: queue.len() as u64 };
            prop_assert_eq!(world.ledger.queued(*id), count);
        }
    }
    for n in 0..world.queues.len() {
        while !world.queues[n].2.is_empty() {
            world.consume(n);
        }
    }
    prop_assert_eq!((world.node.used, world.node.messages, world.node.congested), (0, 0, false));
    Ok(())
}

proptest! {
    #[test]
    fn an_exclusive_port_is_counted_as_its_member(steps in proptest::collection::vec(step(), 1..120)) {
        run(Sharing::Exclusive, &steps)?;
    }

    #[test]
    fn a_balanced_port_is_congested_when_all_members_are_full(steps in proptest::collection::vec(step(), 1..120)) {
        run(Sharing::Balance, &steps)?;
    }

    #[test]
    fn a_fan_out_port_is_congested_when_any_member_is_full(steps in proptest::collection::vec(step(), 1..120)) {
        run(Sharing::FanOut, &steps)?;
    }
}
