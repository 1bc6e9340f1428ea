//! What holds of messages between clients of daemons, which may be killed while their clients live on.
//!
//! *Once*, *order*, *whole* and *one outcome* hold as between nodes ([`super::check`]). The others are about daemons, not about processes:
//!
//! * *Unknown* needs that either daemon was killed. An unknown message may have arrived or not.
//! * *No holes but at kills*: what does not arrive of a pair's messages is missing in one piece at most for each kill of either daemon
//!   (and each restart of either client).
//! * *No loss*: a message that was delivered and is not received was dropped by a new daemon before its client had bound the socket again,
//!   which the daemon counts, or was held by a killed one past a full ring, which its limits bound.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::check::{Fate, Limits, Report};
use super::log::Event;
use super::message::Pair;

/// Name of the file that says it, beside the logs.
const FILE: &str = "daemons.json";

/// What happened to daemons, by address of their nodes. Whoever kills them must know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemons {
    /// How often each was killed.
    pub kills: BTreeMap<Ipv4Addr, u64>,
    /// Messages that all lives of each dropped because nobody had bound their port.
    pub dropped: BTreeMap<Ipv4Addr, u64>,
}

impl Daemons {
    /// Writes it beside the logs in `dir`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        std::fs::write(dir.join(FILE), serde_json::to_vec(self)?)
    }

    /// What stands beside the logs in `dir`; nothing happened if nothing does.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(dir: &Path) -> io::Result<Self> {
        match std::fs::read(dir.join(FILE)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e),
        }
    }

    fn kills(&self, pair: &Pair) -> u64 {
        let of = |address| self.kills.get(address).copied().unwrap_or(0);
        of(pair.source.ip()) + of(pair.destination.ip())
    }
}

/// What is missing at one node, of all that was delivered to it.
#[derive(Debug, Default)]
pub(super) struct Missing {
    by_node: BTreeMap<Ipv4Addr, Vec<u32>>,
    sockets: BTreeMap<Ipv4Addr, (u64, BTreeMap<u16, ()>)>,
}

impl Missing {
    /// Walks along what one incarnation of a socket sent to another. `restarts`: how often either client began anew; `killed`: whether this
    /// one did not end by itself.
    pub(super) fn stream(
        &mut self,
        daemons: &Daemons,
        (pair, restarts, receive_buffer, killed): (Pair, u64, u64, bool),
        fates: &[Fate],
        report: &mut Report,
        broken: &mut impl FnMut(&mut Report, String),
    ) {
        let breaks = daemons.kills(&pair) + restarts;
        let name = |number: usize| format!("message {number} from {} to {}", pair.source, pair.destination);
        let (mut holes, mut in_hole) = (0, false);
        // What follows the last one that was received is missing for want of time, or it is a hole as well: its outcomes say.
        for (number, fate) in fates.iter().enumerate() {
            if fate.by != 0 {
                in_hole = false;
                if !fate.accepted && !killed {
                    broken(report, format!("{}: refused, but received", name(number)));
                }
                continue;
            }
            match fate.outcome {
                // Nothing was promised.
                None | Some(Event::Cancelled) => continue,
                Some(Event::Unknown) => {
                    if breaks == 0 {
                        broken(report, format!("{}: unknown, but nothing was killed", name(number)));
                    }
                }
                Some(_) => {
                    report.lost_with_daemon += 1;
                    self.by_node.entry(*pair.destination.ip()).or_default().push(fate.len);
                    let sockets = self.sockets.entry(*pair.destination.ip()).or_default();
                    sockets.0 = sockets.0.max(receive_buffer);
                    sockets.1.insert(pair.destination.port(), ());
                }
            }
            holes += u64::from(!in_hole);
            in_hole = true;
        }
        if holes > breaks {
            broken(
                report,
                format!(
                    "{} to {}: messages are missing in {holes} places, with {breaks} kills of daemons and restarts of clients",
                    pair.source, pair.destination
                ),
            );
        }
    }

    /// Whether as much is missing as may be.
    pub(super) fn judge(mut self, daemons: &Daemons, limits: Limits, mut broken: impl FnMut(String)) {
        for (node, lens) in &mut self.by_node {
            let dropped = daemons.dropped.get(node).copied().unwrap_or(0);
            // The largest ones were dropped, for what is known.
            lens.sort_unstable();
            let rest = lens.len().saturating_sub(usize::try_from(dropped).unwrap_or(usize::MAX));
            let bytes: u64 = lens[..rest].iter().map(|len| u64::from(*len)).sum();
            let kills = daemons.kills.get(node).copied().unwrap_or(0);
            let (buffer, ports) = self.sockets.get(node).map_or((0, 0), |(b, p)| (*b, p.len() as u64));
            let most = kills * ports * limits.queue(buffer);
            if bytes > most {
                broken(format!(
                    "{} messages delivered to {node} were not received; its daemons dropped {dropped} for want of a socket, and those that were killed may have held {most} bytes, not {bytes}",
                    lens.len()
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use super::super::check::check_with;
    use super::super::log::{Found, Owner, Record, Stack};
    use super::super::message::Id;
    use super::*;

    const A: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), 5);
    const B: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 6);
    const PAIR: Pair = Pair { source: A, destination: B };
    const APP: Option<Event> = Some(Event::DeliveredApplication);
    const UNKNOWN: Option<Event> = Some(Event::Unknown);

    fn log(socket: SocketAddrV4, records: Vec<Record>) -> Found {
        let owner = Owner { socket, incarnation: 1, receive_buffer: 1000, stack: Stack::Daemon };
        let end = Record {
            event: Event::End,
            id: Id { pair: Pair { source: socket, destination: socket }, incarnation: 1, number: 0 },
            len: 0,
        };
        Found { owner, records: [records, vec![end]].concat() }
    }

    /// What is broken if these were the outcomes, these arrived, and these daemons were killed so often, `dropped` by B's.
    fn broken(outcomes: &[Option<Event>], got: &[u64], kills: [u64; 2], dropped: u64) -> Vec<String> {
        let record =
            |event, number| Record { event, id: Id { pair: PAIR, incarnation: 1, number }, len: 100 };
        let mut sent = Vec::new();
        for (number, outcome) in (0..).zip(outcomes) {
            sent.extend([record(Event::Intent, number), record(Event::Accepted, number)]);
            sent.extend(outcome.map(|o| record(o, number)));
        }
        let got = got.iter().map(|n| record(Event::Received, *n)).collect();
        let daemons = Daemons {
            kills: [(*A.ip(), kills[0]), (*B.ip(), kills[1])].into(),
            dropped: [(*B.ip(), dropped)].into(),
        };
        let limits = Limits { port_hard_limit: 1, beyond: 0 };
        check_with(&[log(A, sent), log(B, got)], limits, daemons).first_broken
    }

    #[test]
    fn unknown_messages_may_have_arrived_or_not_if_a_daemon_was_killed() {
        for kills in [[1, 0], [0, 1]] {
            assert_eq!(broken(&[APP, UNKNOWN, UNKNOWN, APP], &[0, 1, 3], kills, 0), [""; 0]);
        }
        assert!(broken(&[APP, UNKNOWN, APP], &[0, 1, 2], [0, 0], 0).is_empty(), "it arrived after all");
        assert_eq!(broken(&[APP, UNKNOWN, APP], &[0, 2], [0, 0], 0).len(), 2, "unknown, and a hole");
    }

    #[test]
    fn a_kill_explains_one_hole_and_as_much_as_a_daemon_may_hold() {
        assert_eq!(broken(&[APP, APP, APP], &[0, 2], [0, 1], 0), [""; 0], "held by the killed one");
        assert_eq!(broken(&[APP, UNKNOWN, APP, UNKNOWN, APP], &[0, 2, 4], [0, 1], 0).len(), 1, "two holes");
        let outcomes = [APP; 20];
        let got = [0, 15, 16, 17, 18, 19];
        assert_eq!(broken(&outcomes, &got, [0, 1], 4), [""; 0], "4 dropped, 10 of 100 bytes held");
        assert_eq!(broken(&outcomes, &got, [0, 1], 3).len(), 1, "11 cannot have been held");
        assert_eq!(broken(&outcomes, &got, [1, 0], 3).len(), 1, "the sender's daemon held none of them");
    }

    #[test]
    fn each_message_has_one_outcome_and_comes_once_in_order_whatever_was_killed() {
        let kills = [9, 9];
        assert_eq!(broken(&[APP, None], &[0], kills, 9).len(), 1, "no outcome");
        assert_eq!(broken(&[APP, APP], &[0, 1, 0], kills, 9).len(), 2, "twice, and out of order");
        assert_eq!(broken(&[APP], &[0, 1], kills, 9).len(), 1, "nobody sent it");
        let transport = Some(Event::DeliveredTransport);
        assert_eq!(broken(&[transport], &[0], kills, 9).len(), 1, "between nodes of ours");
    }
}
