//! Several lanes. The last scenarios of a role: a kernel remembers how many lanes an address had.

use std::collections::BTreeSet;

use rds_client::{Event, Received, Socket};

use crate::guest::Kernel;
use crate::interop::ours::{self, Ours};
use crate::interop::{Case, PATIENCE, Role, Scenario, pattern};

const LANES: u8 = 4;
const SOCKETS: u16 = 8;
const EACH: u64 = 60;

pub(super) const LANES_AT_REST: Scenario = Scenario {
    name: "four lanes",
    promise: |kernel| match kernel.loses_acknowledged() {
        true => "one lane is used, all that is safe there; every byte arrives, in the order of each pair",
        false => "four come into use in mid-run; every byte arrives, in the order of each pair",
    },
    run: |case| lanes(case, |_, _| ()),
};

pub(super) const LANES_RESET: Scenario = Scenario {
    name: "four lanes, all or one of them reset in mid-run",
    promise: |kernel: Kernel| match kernel.loses_acknowledged() {
        true => {
            "to us nothing is lost; to the kernel only what its TCP had acknowledged; nothing comes twice or out of order"
        }
        false => "nothing is lost, comes twice or out of the order of each pair; the lanes come back",
    },
    run: |case| {
        lanes(case, |case, number| match number {
            15 | 45 => ours::reset(case),
            30 => ours::reset_one(case),
            _ => (),
        });
    },
};

/// Eight sockets each way, and something happens before each of the kernel's numbers.
fn lanes(case: &Case<'_>, happens: fn(&Case<'_>, u64)) {
    let ours = Ours::open_with(case, |settings| settings.lanes(LANES));
    let inbox = ours.bind(case, 4010);
    let sockets: Vec<Socket> = (0..SOCKETS).map(|i| ours.bind(case, 4000 + i)).collect();
    let to = case.kernel_at(4000);
    // It has to know this life of ours before it queues anything. On learning of a new life it numbers anew, and what it
    // had queued for its first lane then has numbers that look too high to be waited for before it uses the others
    // (`rds_conn_peer_gen_update`, `rds_mprds_cp0_catchup`).
    sockets[0].send_to(b"", case.kernel_at(0)).expect("it is queued");
    let Ok(Received::Message { len: 0, .. }) = sockets[0].recv_from(&mut []) else {
        panic!("it answers pings")
    };
    let mut reader =
        case.kpeer(&format!("recv --at '{to}' --count 0 --rcvbuf 4M --timeout-ms 0 --allow-gaps -v")).ready();
    let mut writer = case.kpeer(&format!(
        "send --from '{}' --to '{}' --sockets {SOCKETS} --count {} --size 16,1000,30000,100,4096 --interval-ms 1 \
         --sndbuf 4M --timeout-ms {}",
        case.kernel_at(5000),
        inbox.local_addr(),
        u64::from(SOCKETS) * EACH,
        PATIENCE.as_millis()
    ));
    // kpeer numbers each of its sockets' messages from 0.
    let mut next = [0; SOCKETS as usize];
    for number in 0..EACH {
        for socket in &sockets {
            let len = [16, 900, 40_000, 100][number as usize % 4];
            socket.send_to(&pattern::payload(number, len), to).expect("it is queued");
            let Ok(Event::Message(message)) = inbox.recv_lease() else {
                panic!("the kernel's next does not come; so many did: {next:?}: {:#?}", ours.node.snapshot())
            };
            let next = &mut next[usize::from(message.from.port() - case.port(5000))];
            let whole = pattern::check(&message.payload, *next);
            whole.unwrap_or_else(|why| panic!("from {}: {why}", message.from));
            *next += 1;
        }
        happens(case, number);
    }
    assert_eq!(next, [EACH; SOCKETS as usize]);
    writer.ends_well();
    let (kind, used) =
        if case.kernel.loses_acknowledged() { ("kernel <= 6.18", 1) } else { ("kernel >= 7.0", LANES) };
    ours.until("all lanes are up and in use", |now| {
        let up = |p: &rds_core::info::PeerInfo| p.connections.iter().filter(|c| c.state == "up").count();
        now.peers.iter().any(|p| p.kind == kind && p.lanes == used && up(p) == usize::from(used))
    });
    if used > 1 {
        let dialled = ours::connections(case).into_iter().map(|(ours, theirs)| {
            let port = if case.role == Role::Smaller { ours } else { theirs };
            u8::try_from(port % u16::from(used)).expect("below the number of lanes")
        });
        let lanes: BTreeSet<u8> = dialled.collect();
        assert_eq!(lanes, (0..used).collect(), "each connection's source port tells its lane");
    }
    for (socket, port) in sockets.iter().zip(case.port(4000)..) {
        assert!(socket.flush(PATIENCE), "all has arrived: {:#?}", ours.node.snapshot_with_queues());
        // What was sent last was sent after the last reset.
        reader.receives(port, EACH - 1);
        let arrived = reader.numbers(port);
        assert!(arrived.is_sorted_by(|a, b| a < b), "from our port {port}: {arrived:?}");
        let all = arrived.len() as u64 == EACH;
        assert!(all || case.kernel.loses_acknowledged(), "from our port {port} only {arrived:?}");
    }
    reader.is_undamaged();
    drop((inbox, sockets, reader));
    ours.comes_to_rest();
}
