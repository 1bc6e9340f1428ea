//! Programs that have connected and not said yet what they want; and letting them in.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rds_core::attach::{
    Greeting, GreetingError, Hello, Refusal, RefusalCode, Welcome, arena_size, ring_capacity,
};
use rds_core::zerocopy::Cap;

use super::Service;
use crate::access::{Client, Grant, Kind, OverQuota, Ports, Rules, Who};

/// Connections on which a hello is due, oldest first.
pub(super) struct Hellos {
    most: usize,
    timeout: Duration,
    waiting: BTreeMap<u64, (Instant, Greeting)>,
}

impl Hellos {
    pub(super) fn new(most: usize, timeout: Duration) -> Self {
        Self { most: most.max(1), timeout, waiting: BTreeMap::new() }
    }

    /// Adds one. When there are too many, the user that has most of them loses its oldest, which is returned: who connects without end
    /// is in nobody's way but its own.
    pub(super) fn add(&mut self, id: u64, greeting: Greeting) -> Option<Greeting> {
        self.waiting.insert(id, (Instant::now() + self.timeout, greeting));
        if self.waiting.len() <= self.most {
            return None;
        }
        let uid = |greeting: &Greeting| greeting.credentials().uid;
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        self.waiting.values().for_each(|(_, greeting)| *counts.entry(uid(greeting)).or_default() += 1);
        let worst = counts.into_iter().max_by_key(|(_, count)| *count)?.0;
        let oldest =
            self.waiting.iter().find(|(_, (_, greeting))| uid(greeting) == worst).map(|(id, _)| *id)?;
        self.take(oldest)
    }

    pub(super) fn read(&mut self, id: u64) -> Option<Result<Option<Hello>, GreetingError>> {
        Some(self.waiting.get_mut(&id)?.1.read())
    }

    pub(super) fn take(&mut self, id: u64) -> Option<Greeting> {
        self.waiting.remove(&id).map(|(_, greeting)| greeting)
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> Vec<Greeting> {
        std::mem::take(&mut self.waiting).into_values().map(|(_, greeting)| greeting).collect()
    }

    /// When the oldest is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|(_, (deadline, _))| *deadline)
    }

    /// Takes out those whose time is over.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<(u64, Greeting)> {
        let mut expired = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            if entry.get().0 > now {
                break;
            }
            let (id, (_, greeting)) = entry.remove_entry();
            expired.push((id, greeting));
        }
        expired
    }
}

/// What a client gets.
pub(super) struct Admitted {
    pub(super) host: usize,
    pub(super) welcome: Welcome,
    pub(super) quota: Arc<Client>,
    pub(super) memory: Option<Grant>,
    pub(super) ports: Ports,
    pub(super) pins: Option<u64>,
    pub(super) pin_cap: Arc<Cap>,
}

impl Service {
    /// Whether a client gets in, and with what.
    pub(super) fn admit(&mut self, id: u64, who: &Who, hello: &Hello) -> Result<Admitted, Refusal> {
        let host = match hello.address {
            None => 0,
            Some(wanted) => {
                let is = |host: &crate::host::Host| host.address() == wanted.ip;
                self.hosts.iter().position(is).ok_or_else(|| {
                    let ours: Vec<_> = self.hosts.iter().map(|host| host.address().to_string()).collect();
                    let text =
                        format!("this daemon has no node at {}: it serves {}", wanted.ip, ours.join(", "));
                    Refusal::new(RefusalCode::NoSuchAddress, text)
                })?
            }
        };
        let over = |quota: OverQuota| Refusal::new(RefusalCode::Quota, quota.to_string());
        let quota = self.table.admit(who.uid).map_err(over)?;
        let stream = hello.stream || !self.settings.shared_memory;
        let limits = self.table.quotas().client;
        let (ring, arena) = (self.settings.ring, self.settings.arena);
        let most_ring = ring.max(1 << 20);
        let most_arena = limits.arena / 2;
        let address = self.hosts[host].address();
        let max_message = self.settings.options(address).config.max_message;
        // Half of it may be waiting for the rest of messages, and a message that never fits would stop all that come after it.
        let least = 2 * u64::from(max_message);
        let receive = if hello.receive_arena == 0 { arena } else { hello.receive_arena };
        let welcome = Welcome {
            session: id,
            instance: self.instance,
            address: address.into(),
            stream,
            max_message,
            max_sockets: u32::try_from(limits.sockets).unwrap_or(u32::MAX),
            submission_ring: ring_capacity(hello.submission_ring, ring, most_ring),
            completion_ring: ring_capacity(hello.completion_ring, ring, most_ring),
            send_arena: arena_size(hello.send_arena, arena, most_arena),
            receive_arena: arena_size(receive.max(least), arena, most_arena.max(least)),
            max_send_buffer: limits.send_bytes,
            max_receive_buffer: limits.receive_bytes,
        };
        let memory = if stream {
            None
        } else {
            let arenas = welcome.send_arena.saturating_add(welcome.receive_arena);
            Some(quota.take(Kind::Arena, arenas).map_err(over)?)
        };
        let ports = Rules::new(self.settings.rules.clone()).ports(who, address);
        let pins = self.pins_of_client(host);
        let pin_cap = self.pin_cap(host, who.uid);
        Ok(Admitted { host, welcome, quota, memory, ports, pins, pin_cap })
    }

    /// What a user may have pinned at a node.
    fn pin_cap(&mut self, host: usize, uid: u32) -> Arc<Cap> {
        self.pin_caps.retain(|_, cap| cap.strong_count() > 0);
        if let Some(cap) = self.pin_caps.get(&(host, uid)).and_then(Weak::upgrade) {
            return cap;
        }
        let cap = self.hosts[host].engine.pin_cap(self.pins_of_user(host));
        self.pin_caps.insert((host, uid), Arc::downgrade(&cap));
        cap
    }
}
