//! Messages that are lent to the kernel, by cookie.

use std::net::SocketAddr;

use crate::sys::af_rds::Lent;

/// Names a message that was lent, until [`KernelSocket::take_returned`](super::KernelSocket::take_returned) has brought it; numbers are
/// used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelCookie(pub(super) u32);

/// A message whose cookie came back: the peer's TCP has acknowledged it, or it was cancelled.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Returned {
    /// Which one.
    pub cookie: KernelCookie,
    /// Its memory. None of a message to a destination for which `cancel_sent_to` was called meanwhile: TCP may still be sending from
    /// it, and nobody tells when it is done; so that memory is never freed.
    pub buffer: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Slot {
    /// The next free one, if any.
    Free(Option<u32>),
    /// Being lent.
    Taken {
        to: SocketAddr,
        cancelled: bool,
        early: bool,
    },
    Out {
        lent: Lent,
        to: SocketAddr,
        cancelled: bool,
    },
    /// Came back; the program has not taken it.
    Back,
}

/// What one socket has lent. Its memory grows to the most that ever was lent at a time, and is then used again.
#[derive(Debug, Default)]
pub(super) struct Loans {
    slots: Vec<Slot>,
    free: Option<u32>,
    out: usize,
    returned: Vec<Returned>,
}

impl Loans {
    /// A cookie for a message that is about to be lent.
    pub(super) fn reserve(&mut self, to: SocketAddr) -> KernelCookie {
        let at = self.free.unwrap_or_else(|| {
            self.slots.push(Slot::Free(None));
            (self.slots.len() - 1) as u32
        });
        let taken = Slot::Taken { to, cancelled: false, early: false };
        if let Slot::Free(next) = std::mem::replace(&mut self.slots[at as usize], taken) {
            self.free = next;
        }
        KernelCookie(at)
    }

    /// It was not lent.
    pub(super) fn unreserve(&mut self, cookie: KernelCookie) {
        self.slots[cookie.0 as usize] = Slot::Free(self.free.replace(cookie.0));
    }

    /// It was lent. Another thread may have received the cookie, or cancelled, before this one could say so.
    pub(super) fn lent(&mut self, cookie: KernelCookie, lent: Lent) {
        let slot = &mut self.slots[cookie.0 as usize];
        let Slot::Taken { to, cancelled, early } = *slot else { return };
        *slot = Slot::Out { lent, to, cancelled };
        self.out += 1;
        if early {
            self.complete(cookie.0);
        }
    }

    /// Messages to `destination` that are out now may complete early. To be called before the kernel is told, which must then happen
    /// before the next is reserved.
    pub(super) fn cancel(&mut self, destination: SocketAddr) {
        // As the kernel compares: an address in either form, whatever its flow or scope.
        let place = |to: SocketAddr| (to.ip().to_canonical(), to.port());
        for slot in &mut self.slots {
            if let Slot::Out { to, cancelled, .. } | Slot::Taken { to, cancelled, .. } = slot
                && place(*to) == place(destination)
            {
                *cancelled = true;
            }
        }
    }

    /// A cookie came back. One that nothing was lent for is ignored.
    pub(super) fn complete(&mut self, cookie: u32) {
        let Some(slot) = self.slots.get_mut(cookie as usize) else { return };
        match std::mem::replace(slot, Slot::Free(None)) {
            Slot::Out { lent, cancelled, .. } => {
                // Not free yet: the program knows two messages by their cookies only.
                *slot = Slot::Back;
                self.out -= 1;
                let buffer = (!cancelled).then(|| lent.give_back());
                self.returned.push(Returned { cookie: KernelCookie(cookie), buffer });
            }
            Slot::Taken { to, cancelled, .. } => *slot = Slot::Taken { to, cancelled, early: true },
            other @ (Slot::Free(_) | Slot::Back) => *slot = other,
        }
    }

    /// Moves what came back into `into`.
    pub(super) fn take(&mut self, into: &mut Vec<Returned>) {
        for returned in &self.returned {
            self.slots[returned.cookie.0 as usize] = Slot::Free(self.free.replace(returned.cookie.0));
        }
        into.append(&mut self.returned);
    }

    /// Messages that are out.
    pub(super) fn out(&self) -> usize {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use super::*;

    fn to(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn lend(loans: &mut Loans, byte: u8, port: u16) -> KernelCookie {
        let cookie = loans.reserve(to(port));
        loans.lent(cookie, Lent::pretended(vec![byte]));
        cookie
    }

    fn taken(loans: &mut Loans) -> Vec<(KernelCookie, Option<Vec<u8>>)> {
        let mut returned = Vec::new();
        loans.take(&mut returned);
        returned.into_iter().map(|r| (r.cookie, r.buffer)).collect()
    }

    #[test]
    fn each_message_comes_back_once_with_its_cookie_in_whatever_order() {
        let mut loans = Loans::default();
        let [a, b, c] = [1, 2, 3].map(|byte| lend(&mut loans, byte, 4001));
        for cookie in [b, b, c, a, a] {
            loans.complete(cookie.0);
        }
        assert_eq!(taken(&mut loans), [(b, Some(vec![2])), (c, Some(vec![3])), (a, Some(vec![1]))]);
        assert_eq!((loans.out(), taken(&mut loans).len()), (0, 0));
    }

    #[test]
    fn cookies_are_used_again_and_are_distinct_while_they_are_out() {
        let mut loans = Loans::default();
        let first: Vec<_> = (0..100).map(|i| lend(&mut loans, i, 4001)).collect();
        first.iter().step_by(2).for_each(|c| loans.complete(c.0));
        assert_eq!(taken(&mut loans).len(), 50);
        let second: Vec<_> = (0..50).map(|i| lend(&mut loans, i, 4001)).collect();
        let mut out: Vec<_> = first.into_iter().skip(1).step_by(2).chain(second).collect();
        out.sort_unstable();
        out.dedup();
        assert_eq!((out.len(), loans.slots.len(), loans.out()), (100, 100, 100));
    }

    #[test]
    fn a_cookie_is_not_used_again_before_the_program_has_heard_of_its_return() {
        let mut loans = Loans::default();
        let a = lend(&mut loans, 1, 4001);
        loans.complete(a.0);
        let b = lend(&mut loans, 2, 4001);
        assert_ne!(a, b);
        loans.complete(a.0);
        loans.complete(b.0);
        assert_eq!(taken(&mut loans), [(a, Some(vec![1])), (b, Some(vec![2]))]);
        let (c, d) = (loans.reserve(to(4001)), loans.reserve(to(4001)));
        assert_eq!(([a, b].contains(&c), [a, b].contains(&d), c != d), (true, true, true));
    }

    #[test]
    fn what_was_cancelled_comes_back_without_its_memory() {
        let mut loans = Loans::default();
        let (a, b) = (lend(&mut loans, 1, 4001), lend(&mut loans, 2, 4002));
        loans.cancel(to(4001));
        let c = lend(&mut loans, 3, 4001);
        [a, b, c].iter().for_each(|cookie| loans.complete(cookie.0));
        assert_eq!(taken(&mut loans), [(a, None), (b, Some(vec![2])), (c, Some(vec![3]))]);
    }

    #[test]
    fn a_destination_is_the_same_in_each_form_that_the_kernel_takes_for_the_same() {
        let mut loans = Loans::default();
        let lend_to = |loans: &mut Loans, to: SocketAddr| {
            let cookie = loans.reserve(to);
            loans.lent(cookie, Lent::pretended(vec![1]));
            cookie
        };
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 4001, 7, 2));
        let a = lend_to(&mut loans, "[::ffff:10.0.0.1]:4001".parse().unwrap());
        let b = lend_to(&mut loans, scoped);
        loans.cancel(to(4001));
        loans.cancel("[fe80::1]:4001".parse().unwrap());
        [a, b].iter().for_each(|cookie| loans.complete(cookie.0));
        assert_eq!(taken(&mut loans), [(a, None), (b, None)]);
    }

    #[test]
    fn a_cookie_that_another_thread_received_at_once_is_not_lost() {
        let mut loans = Loans::default();
        let (a, b) = (loans.reserve(to(4001)), loans.reserve(to(4002)));
        loans.cancel(to(4002));
        [a, b].iter().for_each(|cookie| loans.complete(cookie.0));
        assert!(taken(&mut loans).is_empty(), "nobody has the memory yet");
        loans.lent(a, Lent::pretended(vec![1]));
        loans.lent(b, Lent::pretended(vec![2]));
        assert_eq!(taken(&mut loans), [(a, Some(vec![1])), (b, None)]);
        assert_eq!(loans.out(), 0);
    }

    #[test]
    fn a_cookie_that_nothing_was_lent_for_is_ignored() {
        let mut loans = Loans::default();
        let a = lend(&mut loans, 1, 4001);
        let b = loans.reserve(to(4001));
        loans.unreserve(b);
        [u32::MAX, 7, b.0].into_iter().for_each(|cookie| loans.complete(cookie));
        assert!(taken(&mut loans).is_empty());
        loans.complete(a.0);
        assert_eq!(taken(&mut loans), [(a, Some(vec![1]))]);
    }
}
