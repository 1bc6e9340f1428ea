//! Programs that stop reading.

use std::time::Duration;

use rds_client::{Counter, Readiness, Received, TrySendError};

use crate::interop::ours::{Ours, receive_numbered};
use crate::interop::{Case, PATIENCE, Scenario, pattern};

pub(super) const KERNEL_STOPS: Scenario = Scenario {
    name: "the kernel's program stops reading",
    promise: |_| "our sends say `Congested`; nothing is lost; we are told when it reads again",
    run: kernel_stops,
};

const LEN: usize = 8192;

pub(super) fn kernel_stops(case: &Case<'_>) {
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    socket.set_congestion_monitor(true);
    let to = case.kernel_at(4000);
    let reader = format!("recv --at '{to}' --count 0 --rcvbuf 64K --timeout-ms 0 -v");
    let mut reader = case.kpeer(&reader).ready();
    socket.send_to(&pattern::payload(0, LEN), to).expect("it is queued");
    reader.receives(case.port(4000), 0);
    reader.stop(case.guest);
    let mut sent = 1;
    // What is on its way when the buffer is full is taken all the same, so there is more than the buffer.
    loop {
        match socket.try_send_to(&pattern::payload(sent, LEN), to) {
            Ok(()) => {
                sent += 1;
                // Its TCP has it. The map comes a little later, so a few more may go. What a client of a daemon sends meanwhile may wait in
                // the daemon until the kernel's program reads again.
                let flushed = case.daemon || socket.flush(PATIENCE);
                assert!(flushed, "a kernel takes what comes, congested or not");
            }
            Err(TrySendError::Congested) => break,
            Err(TrySendError::Full) => {
                let limit = if case.daemon { Duration::from_millis(10) } else { PATIENCE };
                socket.wait(Readiness::WRITABLE, Some(limit));
            }
            Err(why) => panic!("{why}"),
        }
        assert!(sent < 1000, "a program that does not read is congested some time");
    }
    assert!(sent * LEN as u64 > 64 << 10, "not before its buffer is full: {sent}");
    // A daemon tries what waits again when there may be room, and its client's library knows by itself that the port is congested: there the
    // node may have refused some, or none.
    let refused = ours.counter(Counter::CongSendError);
    assert!(refused == 1 || case.daemon, "{refused} were refused by the node");
    let peers = ours.node.snapshot().peers;
    // Scenarios that run beside this one in the same guest may have filled ports of theirs: a map is the address's.
    assert!(peers.iter().map(|p| p.congested_ports).sum::<u32>() >= 1);
    reader.go_on(case.guest);
    match socket.recv_from(&mut []) {
        Ok(Received::CongestionCleared(bits)) => assert_eq!(bits, 1 << (to.port() % 64)),
        other => panic!("not told that it reads again, but {other:?}"),
    }
    for number in sent..sent + 20 {
        socket.send_to(&pattern::payload(number, LEN), to).expect("it is queued");
    }
    reader.receives(case.port(4000), sent + 19);
    assert_eq!(reader.numbers(case.port(4000)), (0..sent + 20).collect::<Vec<_>>());
    reader.is_undamaged();
    drop((socket, reader));
    ours.comes_to_rest();
}

pub(super) const WE_STOP: Scenario = Scenario {
    name: "our program stops reading",
    promise: |_| "the kernel's sends say ENOBUFS; nothing is lost; it is told when we read again",
    run: we_stop,
};

pub(super) fn we_stop(case: &Case<'_>) {
    const COUNT: u64 = 200;
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    socket.set_recv_buffer(64 << 10);
    let (from, to) = (case.kernel_at(5000), case.ours_at(4000));
    let mut writer = case.kpeer(&format!(
        "send --from '{from}' --to '{to}' --size {LEN} --count {COUNT} --nonblock --cong-monitor --sndbuf 64K --timeout-ms 60000 -v"
    ));
    writer.says("ENOBUFS", |line| line.starts_with("blocked ") && line.ends_with("ENOBUFS"));
    let port =
        |now: &rds_client::Snapshot| now.sockets.iter().find(|s| s.bound.port() == case.port(4000)).copied();
    let held = port(&ours.node.snapshot()).expect("it is bound");
    assert!(held.congested && held.receive_queued > 64 << 10, "{held:?}");
    for number in 0..COUNT {
        drop(receive_numbered(case, &socket, 5000, number));
    }
    let said = writer.ends_well();
    assert!(said.iter().any(|line| line.starts_with("cong-update ")), "told that we read again: {said:#?}");
    drop(socket);
    ours.comes_to_rest();
}
