//! Options blocks that are wrong in every way: refused with a reason, without a panic and before memory is taken.

use std::net::IpAddr;

use proptest::prelude::*;
use rds_stress::block::{Block, Form, V1_LEN, V3_LEN};
use rds_stress::session::{MAX_DEPTH, MAX_MEMORY, Role, Session};

/// What judging a block may allocate: a line that says what is wrong.
const A_LINE: u64 = 4096;

fn v4() -> Block {
    Block::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into())
}

fn judge(form: Form, bytes: &[u8]) -> Result<Session, String> {
    let block = Block::decode(form, bytes);
    let own: IpAddr = if form == Form::V3 { "fd00::2".parse().unwrap() } else { [10, 0, 0, 2].into() };
    Session::new(Role::Passive, &block, own, None)
}

fn allocated(form: Form, bytes: &[u8]) -> (u64, Result<Session, String>) {
    let mut judged = None;
    let info = allocation_counter::measure(|| judged = Some(judge(form, bytes)));
    (info.bytes_max, judged.expect("it was judged"))
}

#[test]
fn each_field_at_its_ends_is_accepted_or_refused_with_one_line_and_no_memory() {
    const WIDTHS: [(usize, usize); 27] = [
        (0, 4),
        (4, 4),
        (8, 4),
        (12, 4),
        (16, 4),
        (20, 4),
        (24, 2),
        (26, 2),
        (28, 4),
        (32, 1),
        (33, 1),
        (34, 1),
        (35, 1),
        (36, 1),
        (37, 1),
        (38, 1),
        (39, 1),
        (40, 1),
        (41, 1),
        (42, 1),
        (43, 1),
        (44, 1),
        (45, 1),
        (46, 1),
        (47, 4),
        (51, 4),
        (55, 4),
    ];
    assert_eq!(WIDTHS.iter().map(|(_, n)| n).sum::<usize>(), V1_LEN, "the whole block");
    for (offset, width) in WIDTHS {
        for fill in [[0; 4], [0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0x80, 0, 0, 0], [0, 0, 0, 1]] {
            let mut bytes = v4().encode("");
            bytes[offset..offset + width].copy_from_slice(&fill[4 - width..]);
            let (most, judged) = allocated(Form::V1, &bytes);
            assert!(most <= A_LINE, "offset {offset}: {most} bytes");
            if let Err(reason) = judged {
                assert!(!reason.is_empty() && reason.lines().count() == 1, "{reason}");
            }
        }
    }
}

#[test]
fn a_huge_depth_and_huge_tasks_are_refused_before_memory_is_taken() {
    for (block, word) in [
        (Block { depth: u32::MAX, ..v4() }, "depth"),
        (Block { depth: 0x322e_302e, ..v4() }, "depth"), // "2.0.": a version taken for a V1 block
        (Block { depth: MAX_DEPTH, tasks: 60_000, starting_port: 1, ..v4() }, "MiB"),
        (Block { tasks: u16::MAX, ..v4() }, "65535"),
        (Block { req_size: u32::MAX, ..v4() }, "a request"),
        (Block { ack_size: u32::MAX, ..v4() }, "an ack"),
        (Block { rdma_size: u32::MAX, ..v4() }, "RDMA"),
    ] {
        let (most, judged) = allocated(Form::V1, &block.encode(""));
        let reason = judged.expect_err("it cannot be");
        assert!(reason.contains(word) && most <= A_LINE, "{reason}, {most} bytes");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_judged_without_a_panic_and_without_memory(
        bytes in prop::collection::vec(any::<u8>(), V3_LEN),
        form in prop_oneof![Just(Form::V1), Just(Form::V2), Just(Form::V3)],
    ) {
        let (most, _) = allocated(form, &bytes[..form.len()]);
        prop_assert!(most <= A_LINE);
    }

    #[test]
    fn what_is_accepted_is_bounded(
        depth in prop_oneof![0..70_000_u32, any::<u32>()],
        tasks: u16,
        req_size in prop_oneof![0..2_000_000_u32, any::<u32>()],
        ack_size in prop_oneof![0..2_000_000_u32, any::<u32>()],
        starting_port: u16,
    ) {
        let block = Block { depth, tasks, req_size, ack_size, starting_port, ..v4() };
        let (most, judged) = allocated(Form::V1, &block.encode(""));
        prop_assert!(most <= A_LINE);
        let Ok(session) = judged else { return Ok(()) };
        prop_assert!((1..=MAX_DEPTH).contains(&session.depth) && session.tasks > 0);
        prop_assert!(session.header <= session.req_size.min(session.ack_size) && session.longest() <= 1 << 20);
        prop_assert!(u32::from(session.port) + u32::from(session.tasks) <= 65535);
        let (_, buffer) = session.buffers();
        prop_assert!(buffer * u64::from(session.tasks) <= MAX_MEMORY.max(u64::from(session.tasks) << 22));
    }
}
