use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::buffer::{OnRelease, Owned, Terms};
use crate::zerocopy::{Closing, Fallbacks, Limits};

/// What payloads say when they are free.
#[derive(Default)]
struct Heard(Mutex<Vec<(u32, bool)>>);

impl OnRelease for Heard {
    fn released(&self, cookie: u32, copied: bool) {
        self.0.lock().unwrap().push((cookie, copied));
    }
}

struct Loan(Vec<Chunk>);

impl Held for Loan {
    fn pieces(&self) -> &[Chunk] {
        &self.0
    }

    fn release(self) -> Vec<Chunk> {
        self.0
    }
}

/// A call as the kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    pinned: bool,
    ending: Ending,
    lens: Vec<usize>,
    took: usize,
}

/// A modelled kernel.
#[derive(Default)]
struct Kernel {
    now: u64,
    cpu: Duration,
    stream: Vec<u8>,
    /// What the next calls do; as `Ok(usize::MAX)` when there is nothing.
    script: VecDeque<Result<usize, Refusal>>,
    made: Vec<Made>,
    next_id: u32,
    /// Calls not notified, and the payloads (by their first byte's address) that they read.
    outstanding: BTreeMap<u32, Vec<usize>>,
    records: VecDeque<(u32, u32, bool)>,
    cut: Option<usize>,
}

impl Kernel {
    fn call(&mut self, pieces: &[Chunk], pinned: bool, ending: Ending) -> Result<usize, Refusal> {
        let most = self.script.pop_front().unwrap_or(Ok(usize::MAX))?;
        let all: Vec<u8> = pieces.iter().flat_map(|p| p.to_vec()).collect();
        let took = most.clamp(1, all.len());
        self.stream.extend_from_slice(&all[..took]);
        self.cpu += Duration::from_micros(1);
        self.made.push(Made { pinned, ending, lens: pieces.iter().map(|p| p.len()).collect(), took });
        Ok(took)
    }

    fn notify(&mut self, first: u32, last: u32, copied: bool) {
        (first..=last).for_each(|id| drop(self.outstanding.remove(&id)));
        self.records.push_back((first, last, copied));
    }

    fn notify_all(&mut self, copied: bool) {
        for id in self.outstanding.keys().copied().collect::<Vec<_>>() {
            self.notify(id, id, copied);
        }
    }
}

impl Wire for Kernel {
    type Held = Loan;

    fn now(&self) -> Time {
        Time::from_nanos(self.now)
    }

    fn cpu_time(&self) -> Duration {
        self.cpu
    }

    fn copy(&mut self, pieces: &[Chunk], ending: Ending) -> Result<usize, Refusal> {
        self.call(pieces, false, ending)
    }

    fn cut(&self) -> Option<usize> {
        self.cut
    }

    fn pin(&mut self, pieces: Vec<Chunk>, ending: Ending) -> Result<(usize, Loan), (Refusal, Vec<Chunk>)> {
        match self.call(&pieces, true, ending) {
            Ok(n) => {
                // Of a part too, the end of the whole.
                let whole = |p: &Chunk| match p.lent() {
                    Some(lent) => range(lent.view(0..lent.len())),
                    None => range(p.view()),
                };
                let ends = pieces.iter().filter(|p| p.is_payload()).map(|p| whole(p).end.addr());
                self.outstanding.insert(self.next_id, ends.collect());
                self.next_id += 1;
                Ok((n, Loan(pieces)))
            }
            Err(refusal) => Err((refusal, pieces)),
        }
    }

    fn reap(&mut self, on: &mut dyn FnMut(u32, u32, bool)) {
        self.records.drain(..).for_each(|(first, last, copied)| on(first, last, copied));
    }
}

fn range(view: crate::buffer::View<'_>) -> std::ops::Range<*const u8> {
    let crate::buffer::View::Bytes(bytes) = view else { panic!("nothing here is shared") };
    bytes.as_ptr_range()
}

fn settings(mode: Mode, pages: u64, calls: u64) -> PathSettings {
    PathSettings {
        mode,
        local_peer: false,
        page_size: 4096,
        calls,
        budget: Arc::new(Budget::new(pages)),
        gauge: Arc::default(),
    }
}

/// A path, its stream, and the kernel below.
struct Rig {
    path: SendPath<Loan>,
    writer: Writer,
    kernel: Kernel,
    queue: VecDeque<Chunk>,
    heard: Arc<Heard>,
    /// End of each payload in memory, by cookie.
    ends: Vec<usize>,
    /// So that no address comes again.
    kept: Vec<bytes::Bytes>,
    expected: Vec<u8>,
    budget: Arc<Budget>,
    gauge: Arc<Gauge>,
}

impl Rig {
    fn new(settings: PathSettings) -> Self {
        Self {
            budget: Arc::clone(&settings.budget),
            gauge: Arc::clone(&settings.gauge),
            path: SendPath::new(settings),
            writer: Writer::default(),
            kernel: Kernel::default(),
            queue: VecDeque::new(),
            heard: Arc::default(),
            ends: Vec::new(),
            kept: Vec::new(),
            expected: Vec::new(),
        }
    }

    fn message(&mut self, len: usize, terms: Terms, reserved: u32) {
        let n = self.ends.len();
        let header = vec![n as u8; 48];
        let payload: Vec<u8> = (0..len).map(|i| (i % 251 + n) as u8).collect();
        self.expected.extend(header.iter().chain(&payload));
        self.queue.push_back(Chunk::from(header));
        let payload = bytes::Bytes::from(payload);
        self.ends.push(payload.as_ptr_range().end.addr());
        self.kept.push(payload.clone());
        let hook = (Arc::clone(&self.heard) as Arc<dyn OnRelease>, n as u32);
        self.queue.push_back(Chunk::of(Owned::from(payload).lend_on(Some(hook), terms, reserved)));
    }

    fn messages(&mut self, lens: &[usize]) {
        lens.iter().for_each(|len| self.message(*len, Terms::default(), 0));
    }

    /// Writes once, as the engine does, at most about `max` bytes.
    fn write(&mut self, max: usize) -> Wrote {
        let mut total = 0;
        let mut batch: Vec<Chunk> = Vec::new();
        for chunk in &self.queue {
            if total >= max {
                break;
            }
            total += chunk.len();
            batch.push(chunk.clone());
        }
        let mut released = Vec::new();
        let wrote = self.path.write(&mut self.writer, &mut self.kernel, &mut batch, &mut released);
        drop((batch, released));
        let mut n = wrote.bytes;
        while let Some(front) = self.queue.front_mut() {
            if n < front.len() {
                front.advance(n);
                break;
            }
            n -= front.len();
            self.queue.pop_front();
        }
        self.check();
        wrote
    }

    fn reap(&mut self) -> u64 {
        let mut released = Vec::new();
        let n = self.path.reap(&mut self.kernel, &mut released);
        drop(released);
        self.check();
        n
    }

    /// Nothing is free that the kernel still reads.
    fn check(&self) {
        for (cookie, _) in self.heard.0.lock().unwrap().iter() {
            let end = self.ends[*cookie as usize];
            let read = self.kernel.outstanding.iter().find(|(_, ends)| ends.contains(&end));
            assert!(read.is_none(), "payload {cookie} is free, and call {read:?} reads it");
        }
    }

    fn pinned(&self) -> Vec<bool> {
        self.kernel.made.iter().map(|m| m.pinned).collect()
    }

    fn heard(&self) -> Vec<(u32, bool)> {
        self.heard.0.lock().unwrap().clone()
    }
}

#[test]
fn each_large_payload_begins_a_segment_buffer_and_takes_the_next_header_along() {
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 100));
    rig.messages(&[65536, 65536, 100, 65536]);
    assert_eq!(rig.write(usize::MAX), Wrote { bytes: rig.expected.len(), stop: None });
    let record = Ending { record: true, more: false };
    let made = |pinned, ending, lens: &[usize]| Made {
        pinned,
        ending,
        lens: lens.to_vec(),
        took: lens.iter().sum(),
    };
    assert_eq!(
        rig.kernel.made,
        [
            made(false, Ending { record: true, more: true }, &[48]),
            made(true, record, &[65536, 48]),
            made(true, record, &[65536]),
            made(false, Ending { record: true, more: true }, &[48, 100, 48]),
            made(true, record, &[65536]),
        ]
    );
    assert!(rig.writer.pinned());
    assert_eq!((rig.heard(), rig.path.outstanding()), (vec![(2, true)], 3));
    assert_eq!((rig.path.pages(), rig.gauge.now()), (18 * 3, 18 * 3));
    rig.kernel.notify(0, 2, false);
    assert_eq!(rig.reap(), 3);
    assert_eq!(rig.heard(), [(2, true), (0, false), (1, false), (3, false)]);
    assert_eq!((rig.budget.used(), rig.gauge.now(), rig.gauge.max()), (0, 0, 54));
}

#[test]
fn while_calls_must_be_short_a_payload_takes_several_and_each_begins_a_segment_buffer() {
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 100));
    rig.kernel.cut = Some(57_344);
    rig.messages(&[131_072, 65_536]);
    assert_eq!(rig.write(usize::MAX), Wrote { bytes: rig.expected.len(), stop: None });
    let lens: Vec<_> = rig.kernel.made.iter().map(|made| (made.pinned, made.lens.clone())).collect();
    let pinned = |lens: &[usize]| (true, lens.to_vec());
    assert_eq!(
        lens,
        [
            (false, vec![48]),
            pinned(&[57_344]),
            pinned(&[57_344]),
            pinned(&[16_384, 48]),
            pinned(&[57_344]),
            pinned(&[8192])
        ]
    );
    assert!(rig.kernel.made.iter().all(|made| made.ending.record), "{:?}", rig.kernel.made);
    rig.kernel.notify(0, 1, false);
    assert_eq!((rig.reap(), rig.heard()), (2, vec![]), "the rest of the first payload is still read");
    // A short call ends the write; the rest begins where it ended.
    rig.kernel.notify(2, 4, false);
    assert_eq!((rig.reap(), rig.heard()), (3, vec![(0, false), (1, false)]));
    rig.messages(&[65_536]);
    rig.kernel.script.extend([Ok(usize::MAX), Ok(4096)]);
    assert_eq!(rig.write(usize::MAX).stop, Some(Stop::Full));
    assert_eq!(rig.write(usize::MAX).stop, None);
    assert_eq!(rig.kernel.made.last().map(|made| made.lens.clone()), Some(vec![4096]));
    rig.check();
}

#[test]
fn a_payload_is_free_when_every_call_that_carried_a_byte_of_it_was_notified() {
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 100));
    rig.messages(&[65536]);
    rig.kernel.script.extend([Ok(48), Ok(1000), Ok(30_000)]);
    assert_eq!(rig.write(usize::MAX).stop, Some(Stop::Full));
    assert_eq!(rig.write(usize::MAX).stop, Some(Stop::Full));
    assert_eq!(rig.write(usize::MAX).stop, None);
    assert_eq!(rig.pinned(), [false, true, true, true], "decided once a message");
    rig.kernel.notify(2, 2, false);
    rig.kernel.notify(0, 0, true);
    assert_eq!((rig.reap(), rig.heard()), (2, vec![]));
    rig.kernel.notify(1, 1, false);
    assert_eq!((rig.reap(), rig.heard()), (1, vec![(0, true)]));
}

#[test]
fn a_small_rest_of_a_pinned_payload_is_pinned_and_one_of_a_copied_payload_copied() {
    for (mode, pinned) in [(Mode::On, true), (Mode::Off, false)] {
        let mut rig = Rig::new(settings(mode, u64::MAX, 100));
        rig.messages(&[65536]);
        rig.kernel.script.extend([Ok(48 + if pinned { 0 } else { 65_000 }), Ok(65_000)]);
        while !rig.queue.is_empty() {
            rig.write(usize::MAX);
            // What is decided stays so.
            rig.path.set_mode(Mode::On);
        }
        assert_eq!(*rig.pinned().last().unwrap(), pinned);
        assert_eq!(rig.kernel.stream, rig.expected);
    }
}

#[test]
fn without_room_in_the_budget_a_message_is_copied_and_the_next_one_that_fits_pinned() {
    let mut rig = Rig::new(settings(Mode::On, 40, 100));
    rig.messages(&[65536, 65536, 65536, 65536]);
    rig.write(usize::MAX);
    assert_eq!(rig.kernel.stream, rig.expected);
    assert_eq!(rig.pinned(), [false, true, true, false, false], "18 pages each");
    assert_eq!(rig.path.counts().fallbacks, Fallbacks { budget: 2, ..Fallbacks::default() });
    rig.kernel.notify_all(false);
    rig.reap();
    rig.messages(&[65536]);
    rig.write(usize::MAX);
    assert!(*rig.pinned().last().unwrap());
}

#[test]
fn a_refusal_for_want_of_memory_is_answered_by_reaping_once_and_then_by_copying() {
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 100));
    rig.messages(&[65536, 65536]);
    // Nothing outstanding: no event will come.
    rig.kernel.script.extend([Ok(48), Err(Refusal::NoMemory)]);
    assert_eq!(rig.write(65536).stop, None);
    assert_eq!(rig.pinned(), [false, false]);
    // A notification is there: once more.
    rig.write(65536);
    rig.kernel.notify_all(false);
    rig.messages(&[65536]);
    rig.kernel.script.extend([Ok(48), Err(Refusal::NoMemory), Ok(usize::MAX)]);
    rig.write(usize::MAX);
    assert!(*rig.pinned().last().unwrap());
    // It helps once a message.
    rig.kernel.notify_all(false);
    rig.messages(&[65536]);
    rig.kernel.script.extend([Ok(48), Err(Refusal::NoMemory), Err(Refusal::NoMemory)]);
    rig.write(usize::MAX);
    assert!(!*rig.pinned().last().unwrap());
    assert_eq!((rig.path.counts().fallbacks.refused, rig.kernel.stream == rig.expected), (2, true));
}

#[test]
fn more_notifications_than_the_socket_may_have_outstanding_are_never_asked_for() {
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 3));
    rig.messages(&[8192; 6]);
    rig.write(usize::MAX);
    assert_eq!((rig.path.outstanding(), rig.path.counts().fallbacks.notifications), (3, 3));
    assert_eq!(rig.kernel.stream, rig.expected);
    rig.kernel.notify_all(true);
    rig.messages(&[8192]);
    rig.write(usize::MAX);
    assert_eq!(rig.path.outstanding(), 1, "reaped before");
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 0));
    rig.messages(&[8192]);
    rig.write(usize::MAX);
    assert_eq!(rig.pinned(), [false, false]);
}

#[test]
fn pages_that_cannot_be_pinned_are_copied() {
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 100));
    rig.messages(&[8192]);
    rig.kernel.script.extend([Ok(48), Err(Refusal::Unpinnable)]);
    assert_eq!(rig.write(usize::MAX).stop, None);
    assert_eq!((rig.path.counts().fallbacks.unpinnable, rig.budget.used()), (1, 0));
}

#[test]
fn a_message_may_want_something_else_than_its_path() {
    for (path, wanted, pinned) in
        [(Mode::Off, Mode::On, true), (Mode::On, Mode::Off, false), (Mode::On, Mode::Auto, false)]
    {
        let mut rig = Rig::new(settings(path, u64::MAX, 100));
        // The first messages of auto go either way in turns; the first one is copied or pinned, but not by the path's mode alone.
        let n = if wanted == Mode::Auto { 24 } else { 1 };
        for _ in 0..n {
            rig.message(65536, Terms { mode: Some(wanted), share: None }, 0);
        }
        rig.write(usize::MAX);
        let last = rig.pinned();
        if wanted == Mode::Auto {
            assert!(last.contains(&false) && last.contains(&true), "{last:?}");
            assert!(last.iter().skip(1).any(|p| !p));
        } else {
            assert_eq!(last, if pinned { vec![false, true] } else { vec![false] });
        }
    }
}

#[test]
fn what_was_reserved_for_a_payload_goes_to_its_call() {
    let mut rig = Rig::new(settings(Mode::On, 40, 100));
    let share = Arc::new(Share::new(&rig.budget));
    share.try_reserve(19).unwrap();
    rig.message(65536, Terms { mode: None, share: Some(Arc::clone(&share)) }, 19);
    assert_eq!(rig.budget.used(), 19);
    rig.write(usize::MAX);
    assert_eq!((rig.pinned(), rig.budget.used()), (vec![false, true], 18));
    rig.kernel.notify_all(false);
    rig.reap();
    assert_eq!(rig.budget.used(), 0);
    // And one that is never sent gives it back.
    share.try_reserve(19).unwrap();
    rig.message(65536, Terms { mode: None, share: Some(share) }, 19);
    rig.queue.clear();
    assert_eq!(rig.budget.used(), 0);
}

#[test]
fn a_path_is_overdue_only_while_nothing_is_notified() {
    let limit = Duration::from_secs(30);
    let second = 1_000_000_000;
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 100));
    let overdue = |rig: &Rig, at: u64| rig.path.is_overdue(Time::from_nanos(at * second), limit);
    assert!(!overdue(&rig, 1000));
    rig.kernel.now = 10 * second;
    rig.messages(&[65536, 65536]);
    rig.write(usize::MAX);
    assert!(!overdue(&rig, 39) && overdue(&rig, 40));
    rig.kernel.now = 39 * second;
    rig.kernel.notify(0, 0, false);
    rig.reap();
    assert!(!overdue(&rig, 68) && overdue(&rig, 69));
    rig.kernel.notify(1, 1, false);
    rig.reap();
    assert!(!overdue(&rig, 1000));
}

#[test]
fn a_broken_connection_ends_with_everything_given_back() {
    let mut rig = Rig::new(settings(Mode::On, u64::MAX, 100));
    rig.messages(&[65536, 65536]);
    rig.kernel.script.extend([Ok(48), Ok(usize::MAX), Err(Refusal::Failed)]);
    assert_eq!(rig.write(usize::MAX).stop, Some(Stop::Failed));
    let mut released = Vec::new();
    assert!(!rig.path.finish(&mut rig.kernel, &mut released), "the kernel still reads");
    rig.kernel.notify_all(false);
    assert!(rig.path.finish(&mut rig.kernel, &mut released));
    drop(released);
    rig.queue.clear();
    assert_eq!(rig.heard().len(), 2);
    assert_eq!((rig.budget.used(), rig.gauge.now()), (0, 0));
    rig.messages(&[65536]);
    assert_eq!(rig.write(usize::MAX).stop, Some(Stop::Failed), "no call after the end");
}

#[test]
fn messages_to_be_measured_are_alone_in_their_calls() {
    let mut rig = Rig::new(settings(Mode::Auto, u64::MAX, 1000));
    rig.messages(&[65536; 100]);
    while !rig.queue.is_empty() {
        rig.write(usize::MAX);
        rig.kernel.notify_all(false);
        rig.reap();
    }
    assert_eq!(rig.kernel.stream, rig.expected);
    let decision = rig.path.decision();
    let size = decision.sizes.iter().find(|s| s.from == 65536).unwrap();
    // A call costs 1 us here, whatever it carries: 64 KiB in one.
    let near = |cost: Option<f32>| cost.is_some_and(|c| (c - 1000.0 / 64.0).abs() < 1.0);
    assert!(near(size.copying) && near(size.zero_copying), "{size:?}");
}

#[derive(Clone, Debug)]
enum Act {
    Message(usize),
    Write(usize),
    Script(Result<usize, Refusal>),
    Notify { skip: usize, n: usize, copied: bool },
    Reap,
    Mode(Mode),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let mode = prop_oneof![Just(Mode::Off), Just(Mode::On), Just(Mode::Auto)];
    prop_oneof![
        6 => prop_oneof![0..200usize, 4000..9000usize, 60_000..140_000usize].prop_map(Act::Message),
        8 => prop_oneof![Just(128 << 10), Just(1 << 20), 1..100usize].prop_map(Act::Write),
        2 => prop_oneof![
            4 => (1..200_000usize).prop_map(Ok),
            1 => Just(Err(Refusal::Full)),
            2 => Just(Err(Refusal::NoMemory)),
            1 => Just(Err(Refusal::Unpinnable)),
        ].prop_map(Act::Script),
        4 => (0..6usize, 1..6usize, any::<bool>()).prop_map(|(skip, n, copied)| Act::Notify { skip, n, copied }),
        3 => Just(Act::Reap),
        1 => mode.prop_map(Act::Mode),
        1 => (0..3_000_000_000u64).prop_map(Act::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn whatever_the_kernel_does_the_stream_is_whole_and_nothing_is_free_too_early(
        acts in proptest::collection::vec(act(), 1..120),
        pages in prop_oneof![Just(u64::MAX), 0..200u64],
        optmem in prop_oneof![Just(131_072u64), 0..6000u64],
        cut in prop_oneof![Just(None), Just(Some(4096)), Just(Some(57_344)), Just(Some(0))],
    ) {
        let calls = Limits { memlock: None, optmem }.notification_limit();
        let mut rig = Rig::new(settings(Mode::Auto, pages, calls));
        rig.kernel.cut = cut;
        for act in acts {
            match act {
                Act::Message(len) => rig.message(len, Terms::default(), 0),
                Act::Write(max) => drop(rig.write(max)),
                Act::Script(result) => rig.kernel.script.push_back(result),
                Act::Notify { skip, n, copied } => {
                    let ids: Vec<_> = rig.kernel.outstanding.keys().copied().skip(skip).take(n).collect();
                    // A record covers numbers without a gap.
                    for id in ids {
                        match rig.kernel.records.back_mut() {
                            Some((_, last, _)) if last.wrapping_add(1) == id => *last = id,
                            _ => rig.kernel.records.push_back((id, id, copied)),
                        }
                        rig.kernel.outstanding.remove(&id);
                    }
                }
                Act::Reap => drop(rig.reap()),
                Act::Mode(mode) => rig.path.set_mode(mode),
                Act::Pass(ns) => rig.kernel.now += ns,
            }
            prop_assert!(rig.path.outstanding() as u64 <= calls);
            prop_assert!(rig.budget.used() <= pages);
        }
        rig.kernel.script.clear();
        while !rig.queue.is_empty() {
            prop_assert_eq!(rig.write(1 << 20).stop, None);
        }
        prop_assert!(rig.kernel.stream == rig.expected);
        let mut closing = Closing::at_once(Time::ZERO);
        let _ = closing.next(Time::ZERO, rig.path.outstanding(), true);
        rig.kernel.notify_all(false);
        let mut released = Vec::new();
        prop_assert!(rig.path.finish(&mut rig.kernel, &mut released));
        drop(released);
        let mut cookies: Vec<u32> = rig.heard().iter().map(|h| h.0).collect();
        cookies.sort_unstable();
        prop_assert!(cookies.into_iter().eq(0..rig.ends.len() as u32), "each once");
        prop_assert_eq!((rig.budget.used(), rig.gauge.now(), rig.path.counts().unknown), (0, 0, 0));
        let counts = rig.path.counts();
        prop_assert_eq!(counts.calls, counts.notified);
    }
}

/// A wire of a thread that ends a socket while another one begins a call.
struct Racing<'a> {
    path: &'a SendPath<Loan>,
    kernel: Kernel,
    /// It begins when notifications are read for so many more times.
    reads: usize,
}

impl Wire for Racing<'_> {
    type Held = Loan;

    fn now(&self) -> Time {
        self.kernel.now()
    }

    fn cpu_time(&self) -> Duration {
        self.kernel.cpu_time()
    }

    fn copy(&mut self, _: &[Chunk], _: Ending) -> Result<usize, Refusal> {
        Err(Refusal::Failed)
    }

    fn pin(&mut self, pieces: Vec<Chunk>, _: Ending) -> Result<(usize, Loan), (Refusal, Vec<Chunk>)> {
        Err((Refusal::Failed, pieces))
    }

    fn reap(&mut self, on: &mut dyn FnMut(u32, u32, bool)) {
        self.kernel.reap(on);
        self.reads = self.reads.wrapping_sub(1);
        if self.reads == 0 {
            let mut batch = [Chunk::payload(vec![1; 65536].into())];
            self.path.write(&mut Writer::default(), &mut self.kernel, &mut batch, &mut Vec::new());
        }
    }
}

#[test]
fn a_call_that_begins_while_its_socket_ends_is_made_to_end_too() {
    for reads in 1..4 {
        let path = SendPath::new(settings(Mode::On, 1000, 100));
        let mut wire = Racing { path: &path, kernel: Kernel::default(), reads };
        let done = path.end(&mut wire, &mut Vec::new(), |wire| wire.kernel.notify_all(false));
        assert!(done, "read {reads}");
        assert_eq!(path.outstanding(), 0);
        let mut batch = [Chunk::payload(vec![1; 65536].into())];
        let wrote = path.write(&mut Writer::default(), &mut Kernel::default(), &mut batch, &mut Vec::new());
        assert_eq!(wrote, Wrote { bytes: 0, stop: Some(Stop::Failed) }, "nothing is pinned any more");
    }
}
