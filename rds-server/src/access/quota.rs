//! How much a client, and all clients of a user together, may have.
//!
//! What is taken is a [`Grant`], which gives it back when it is dropped: nothing can be forgotten, whatever way a client ends.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Kind {
    /// Attached clients.
    Clients,
    /// Bound sockets.
    Sockets,
    /// Bytes that may be queued to be sent: the sum of the sockets' send buffers.
    SendBytes,
    /// Bytes that may be queued and not taken: the sum of the sockets' receive buffers.
    ReceiveBytes,
    /// Bytes of shared memory.
    Arena,
    /// Addresses that it has sent to.
    Peers,
}

/// How many kinds there are.
const KINDS: usize = 6;

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clients => "clients",
            Self::Sockets => "sockets",
            Self::SendBytes => "bytes of send buffers",
            Self::ReceiveBytes => "bytes of receive buffers",
            Self::Arena => "bytes of shared memory",
            Self::Peers => "peers to send to",
        })
    }
}

/// Most of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Attached clients.
    pub clients: u64,
    /// Bound sockets.
    pub sockets: u64,
    /// Bytes of send buffers, all sockets together.
    pub send_bytes: u64,
    /// Bytes of receive buffers, all sockets together.
    pub receive_bytes: u64,
    /// Bytes of shared memory.
    pub arena: u64,
    /// Addresses that it has sent to since it attached.
    pub peers: u64,
}

impl Limits {
    const fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Clients => self.clients,
            Kind::Sockets => self.sockets,
            Kind::SendBytes => self.send_bytes,
            Kind::ReceiveBytes => self.receive_bytes,
            Kind::Arena => self.arena,
            Kind::Peers => self.peers,
        }
    }
}

/// Limits of a client, of a user, and of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Of each client (`clients` does not matter there).
    pub client: Limits,
    /// Of all clients of a user together.
    pub user: Limits,
    /// Attached clients of the daemon.
    pub max_clients: u64,
}

/// Something would go beyond a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quota: no more than {limit} {kind} for {whom}, of which {used} are taken")]
pub struct OverQuota {
    /// Of what.
    pub kind: Kind,
    /// Whose limit: `a client`, `a user`, `the daemon`.
    pub whom: &'static str,
    /// The limit.
    pub limit: u64,
    /// What is taken already.
    pub used: u64,
}

type Usage = [u64; KINDS];

#[derive(Debug)]
struct Books {
    quotas: Quotas,
    clients: u64,
    users: HashMap<u32, Usage>,
}

/// What everybody has.
#[derive(Debug)]
pub struct Table {
    books: Mutex<Books>,
}

impl Table {
    /// Nobody has anything.
    #[must_use]
    pub fn new(quotas: Quotas) -> Arc<Self> {
        Arc::new(Self { books: Mutex::new(Books { quotas, clients: 0, users: HashMap::new() }) })
    }

    /// The limits.
    #[must_use]
    pub fn quotas(&self) -> Quotas {
        self.books().quotas
    }

    /// Has other limits from now on. Who has more than a lower one keeps it, and gets nothing more before it has less.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.books().quotas = quotas;
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits one more client of a user.
    ///
    /// # Errors
    /// The user, or the daemon, has as many as may be.
    pub fn admit(self: &Arc<Self>, uid: u32) -> Result<Arc<Client>, OverQuota> {
        let mut books = self.books();
        let (kind, limit) = (Kind::Clients, books.quotas.max_clients);
        if books.clients >= limit {
            return Err(OverQuota { kind, whom: "the daemon", limit, used: books.clients });
        }
        let limit = books.quotas.user.clients;
        let used = books.users.get(&uid).map_or(0, |usage| usage[kind as usize]);
        if used >= limit {
            return Err(OverQuota { kind, whom: "a user", limit, used });
        }
        books.clients += 1;
        books.users.entry(uid).or_default()[kind as usize] += 1;
        Ok(Arc::new(Client { table: Arc::clone(self), uid, usage: Mutex::default() }))
    }

    /// Whether nobody has anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let books = self.books();
        books.clients == 0 && books.users.is_empty()
    }
}

/// What one client has. It counts as a client until the last reference and grant is gone.
#[derive(Debug)]
pub struct Client {
    table: Arc<Table>,
    uid: u32,
    usage: Mutex<Usage>,
}

impl Client {
    /// Takes `amount`.
    ///
    /// # Errors
    /// Client or user would have more than it may.
    pub fn take(self: &Arc<Self>, kind: Kind, amount: u64) -> Result<Grant, OverQuota> {
        self.take_up_to(kind, amount, amount)
    }

    /// Takes as much of `want` as there is, but `least`.
    ///
    /// # Errors
    /// There is less than `least`.
    pub fn take_up_to(self: &Arc<Self>, kind: Kind, want: u64, least: u64) -> Result<Grant, OverQuota> {
        let granted = self.charge(kind, want, least)?;
        Ok(Grant { client: Arc::clone(self), kind, amount: granted })
    }

    /// What it has of a kind.
    #[must_use]
    pub fn used(&self, kind: Kind) -> u64 {
        self.usage()[kind as usize]
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn charge(&self, kind: Kind, want: u64, least: u64) -> Result<u64, OverQuota> {
        let mut books = self.table.books();
        let quotas = books.quotas;
        let mut usage = self.usage();
        let (mine, ours) = (&mut usage[kind as usize], books.users.entry(self.uid).or_default());
        let ours = &mut ours[kind as usize];
        let mut granted = want;
        for (whom, limit, used) in
            [("a client", quotas.client.of(kind), *mine), ("a user", quotas.user.of(kind), *ours)]
        {
            let free = limit.saturating_sub(used);
            if free < least {
                return Err(OverQuota { kind, whom, limit, used });
            }
            granted = granted.min(free);
        }
        *mine += granted;
        *ours += granted;
        Ok(granted)
    }

    fn give_back(&self, kind: Kind, amount: u64) {
        let mut books = self.table.books();
        self.usage()[kind as usize] -= amount;
        if let Some(ours) = books.users.get_mut(&self.uid) {
            ours[kind as usize] -= amount;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut books = self.table.books();
        books.clients -= 1;
        if let Some(ours) = books.users.get_mut(&self.uid) {
            ours[Kind::Clients as usize] -= 1;
            if ours.iter().all(|n| *n == 0) {
                books.users.remove(&self.uid);
            }
        }
    }
}

/// Something that a client has, until this is dropped.
#[derive(Debug)]
pub struct Grant {
    client: Arc<Client>,
    kind: Kind,
    amount: u64,
}

impl Grant {
    /// How much.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Asks for another amount instead: gets as much of it as there is, at least `least`, and otherwise what it had. Returns what it has then.
    pub fn change(&mut self, want: u64, least: u64) -> u64 {
        if want <= self.amount {
            self.client.give_back(self.kind, self.amount - want);
            self.amount = want;
        } else {
            let more = want - self.amount;
            let needed = least.saturating_sub(self.amount);
            self.amount += self.client.charge(self.kind, more, needed).unwrap_or(0);
        }
        self.amount
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.client.give_back(self.kind, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(client: u64, user: u64, clients: u64) -> Arc<Table> {
        let all = |n| Limits { clients, sockets: n, send_bytes: n, receive_bytes: n, arena: n, peers: n };
        Table::new(Quotas { client: all(client), user: all(user), max_clients: 3 })
    }

    #[test]
    fn one_users_clients_do_not_use_up_anothers_quota() {
        let table = table(10, 15, 2);
        let (a, b) = (table.admit(1).unwrap(), table.admit(1).unwrap());
        let error = table.admit(1).unwrap_err();
        assert_eq!(error.to_string(), "quota: no more than 2 clients for a user, of which 2 are taken");
        let _ten = a.take(Kind::Sockets, 10).unwrap();
        assert_eq!(a.take(Kind::Sockets, 1).unwrap_err().whom, "a client");
        let five = b.take(Kind::Sockets, 5).unwrap();
        assert_eq!(b.take(Kind::Sockets, 1).unwrap_err().whom, "a user");
        let c = table.admit(2).unwrap();
        assert_eq!(table.admit(3).unwrap_err().whom, "the daemon");
        c.take(Kind::Sockets, 10).unwrap();
        drop(five);
        b.take(Kind::Sockets, 5).unwrap();
    }

    #[test]
    fn what_is_clamped_is_what_is_left() {
        let table = table(100, 1000, 9);
        let client = table.admit(1).unwrap();
        let mut first = client.take_up_to(Kind::SendBytes, 60, 10).unwrap();
        let second = client.take_up_to(Kind::SendBytes, 60, 10).unwrap();
        assert_eq!((first.amount(), second.amount()), (60, 40));
        assert!(client.take_up_to(Kind::SendBytes, 60, 1).is_err());
        assert_eq!(first.change(200, 1), 60, "nothing is left");
        assert_eq!(first.change(20, 1), 20);
        assert_eq!(first.change(1000, 1), 60);
    }

    #[test]
    fn a_client_counts_until_its_last_grant_is_gone() {
        let table = table(5, 5, 1);
        let client = table.admit(1).unwrap();
        let grant = client.take(Kind::Arena, 5).unwrap();
        drop(client);
        assert!(table.admit(1).is_err());
        drop(grant);
        assert!(table.is_empty());
        table.admit(1).unwrap();
    }

    #[test]
    fn a_lowered_quota_takes_nothing_away_and_gives_nothing_more_until_there_is_less() {
        let table = table(100, 1000, 2);
        let mut quotas = table.quotas();
        let (client, other) = (table.admit(1).unwrap(), table.admit(1).unwrap());
        let mut grant = client.take(Kind::SendBytes, 80).unwrap();
        (quotas.client.send_bytes, quotas.user.clients) = (50, 1);
        table.set_quotas(quotas);
        assert_eq!(grant.amount(), 80);
        assert_eq!(client.take(Kind::SendBytes, 1).unwrap_err().limit, 50);
        assert_eq!(grant.change(90, 1), 80, "it keeps what it has");
        assert!(table.admit(1).is_err());
        assert_eq!(grant.change(40, 1), 40);
        assert_eq!(client.take_up_to(Kind::SendBytes, 30, 1).unwrap().amount(), 10);
        drop((other, grant, client));
        drop(table.admit(1).unwrap());
        assert!(table.is_empty(), "what was given under other limits came back whole");
    }

    proptest! {
        #[test]
        fn nothing_goes_beyond_a_limit_and_everything_comes_back(
            steps in proptest::collection::vec((0..4_usize, 0..2_u32, 0..30_u64, 0..10_usize), 1..80)
        ) {
            let table = table(50, 70, 2);
            let mut clients: Vec<Arc<Client>> = Vec::new();
            let mut grants: Vec<(u32, Grant)> = Vec::new();
            for (what, uid, amount, which) in steps {
                match what {
                    0 => clients.extend(table.admit(uid)),
                    1 if !clients.is_empty() => {
                        let client = &clients[which % clients.len()];
                        grants.extend(client.take_up_to(Kind::SendBytes, amount, amount / 2).map(|g| (client.uid, g)));
                    }
                    2 if !grants.is_empty() => drop(grants.swap_remove(which % grants.len())),
                    3 if !grants.is_empty() => {
                        let n = which % grants.len();
                        grants[n].1.change(amount, 0);
                    }
                    _ => {}
                }
                for uid in 0..2 {
                    let sum: u64 = grants.iter().filter(|(u, _)| *u == uid).map(|(_, g)| g.amount()).sum();
                    prop_assert!(sum <= 70);
                }
                for client in &clients {
                    prop_assert!(client.used(Kind::SendBytes) <= 50);
                }
            }
            drop(grants);
            drop(clients);
            prop_assert!(table.is_empty());
        }
    }
}
