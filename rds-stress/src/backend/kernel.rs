//! Over sockets of the kernel's RDS, one for each task.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rds_client::{Mode, Reason};
use rds_core::kernel::{
    KernelBindError, KernelInfo, KernelReceived, KernelSendError, KernelSocket, Returned,
};

use super::{Backend, Choice, Incoming, Port, Refused, Want, broken, warn_of_buffers};
use crate::control;
use crate::error::{Failure, failure};
use crate::out::Out;
use crate::outbox::SHORTEST_LENT;
use crate::roles::Settings;
use crate::session::{Role, Session};
use crate::stats::CounterList;
use crate::task::TaskFailure;
use crate::zerocopy::{Modes, Totals, ZeroCopy};

/// So many messages of a task may be lent in any case.
const LEAST: u64 = 4;

/// The kernel's RDS at one address.
#[derive(Debug)]
pub struct Kernel {
    lends: bool,
    /// Counters are the machine's: these were there before.
    before: CounterList,
    info: KernelInfo,
    counts: Arc<Counts>,
}

/// What was lent, by all tasks.
#[derive(Debug, Default)]
struct Counts {
    calls: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
    returned: AtomicU64,
    reaps: AtomicU64,
    pinned: AtomicU64,
    pinned_max: AtomicU64,
}

fn counters(info: &KernelInfo) -> CounterList {
    let list = info.counters().unwrap_or_default();
    CounterList(list.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn bind(at: SocketAddr, lends: bool) -> Result<KernelSocket, Failure> {
    // Loopback is another transport, which cannot lend.
    let socket =
        if lends || !at.ip().is_loopback() { KernelSocket::bind_tcp(at) } else { KernelSocket::bind(at) };
    socket.map_err(|e| match e {
        KernelBindError::NoTransport(_) if at.ip().is_loopback() => failure!(
            "the kernel carries {} without TCP and cannot send without a copy there: leave out --zcopy, or take another address",
            at.ip()
        ),
        KernelBindError::NoTransport(_) if !is_local(at.ip()) => control::not_local(at.ip()),
        e => failure!("{e}"),
    })
}

fn is_local(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

impl Backend for Kernel {
    const CHOICE: Choice = Choice::Kernel;
    type Port = KernelPort;
    type Mark = CountsNow;

    fn open(address: IpAddr, _: Role, settings: &Settings) -> Result<Self, Failure> {
        let info = KernelInfo::open().map_err(|e| failure!("{e}, or take --backend rds"))?;
        let lends = settings.local.zero_copy.send != Mode::Off;
        // An address that cannot be used shows at once. Port 0 is any free one.
        drop(bind(SocketAddr::new(address, 0), lends)?);
        Ok(Self { lends, before: counters(&info), info, counts: Arc::default() })
    }

    fn bind(&self, session: &Session, tasks: Range<u16>, out: Out) -> Result<Vec<KernelPort>, Failure> {
        let (wanted, buffer) = session.buffers();
        let longest = session.longest();
        let ports = tasks.map(|index| {
            let at = SocketAddr::new(session.own, session.task_port(index));
            let socket = bind(at, self.lends).map_err(|f| failure!("task {index}: {f}"))?;
            let told = |e: io::Error| failure!("the kernel's RDS refuses a setting of its socket: {e}");
            let granted = socket.set_send_buffer(buffer as usize).map_err(told)?;
            if granted < longest {
                return Err(failure!(
                    "the kernel grants send buffers of {granted} bytes, and messages have {longest}: raise net.core.wmem_max (sysctl), or run as root"
                ));
            }
            let receive = socket.set_recv_buffer(buffer as usize).map_err(told)?;
            if index == 0 {
                warn_of_buffers(wanted, granted.min(receive) as u64, out);
            }
            socket.set_congestion_monitor(session.cong_monitor).map_err(told)?;
            if self.lends {
                socket.enable_zero_copy().map_err(told)?;
            }
            socket.set_nonblocking(true).map_err(told)?;
            Ok(KernelPort {
                socket,
                inbox: vec![0; longest],
                lends: self.lends,
                header: session.header,
                whole: session.verify,
                most_bytes: 2 * buffer,
                free: Vec::new(),
                returned: Vec::new(),
                counts: Arc::clone(&self.counts),
            })
        });
        ports.collect()
    }

    fn counters(&self) -> CounterList {
        counters(&self.info).since(&self.before)
    }

    fn totals(&self) -> Totals {
        let now = self.mark();
        Totals {
            calls: now.calls,
            notified: now.returned,
            reaps: now.reaps,
            pinned: now.pinned,
            ..Totals::default()
        }
    }

    fn mark(&self) -> CountsNow {
        let counts = &self.counts;
        CountsNow {
            calls: counts.calls.load(Relaxed),
            bytes: counts.bytes.load(Relaxed),
            refused: counts.refused.load(Relaxed),
            returned: counts.returned.load(Relaxed),
            reaps: counts.reaps.load(Relaxed),
            pinned: counts.pinned.load(Relaxed),
        }
    }

    fn zero_copy(&self, modes: Modes, since: &CountsNow) -> ZeroCopy {
        let now = self.mark();
        let mut report = ZeroCopy::idle(modes);
        let send = &mut report.send;
        send.calls = now.calls - since.calls;
        send.bytes = now.bytes - since.bytes;
        let reaps = now.reaps - since.reaps;
        if reaps > 0 {
            send.completions_per_reap = (now.returned - since.returned) as f64 / reaps as f64;
        }
        send.fallbacks.insert("refused", now.refused - since.refused);
        if self.lends {
            (send.decision, send.reason) = ("on", Some(Reason::Setting));
        }
        report.pinned_bytes = now.pinned;
        report.pinned_bytes_max = self.counts.pinned_max.load(Relaxed);
        report
    }

    fn silence(&self, session: &Session, _: &Settings) -> String {
        let (own, peer) = (session.own, session.peer);
        format!(
            "{own} and {peer} must reach TCP port 16385 of each other; look for a firewall, or for another port (--rds-port) there"
        )
    }
}

/// What was lent at one moment.
#[derive(Clone, Copy, Debug)]
pub struct CountsNow {
    calls: u64,
    bytes: u64,
    refused: u64,
    returned: u64,
    reaps: u64,
    pinned: u64,
}

/// A socket of the kernel's.
#[derive(Debug)]
pub struct KernelPort {
    socket: KernelSocket,
    inbox: Vec<u8>,
    lends: bool,
    header: usize,
    /// Payloads matter as well.
    whole: bool,
    /// Bytes that may be lent at a time, but always a few messages.
    most_bytes: u64,
    /// What came back.
    free: Vec<Vec<u8>>,
    returned: Vec<Returned>,
    counts: Arc<Counts>,
}

/// What the kernel counts as pinned for a message (`mm_account_pinned_pages`).
fn pinned(len: usize) -> u64 {
    ((len as u64 >> 12) + 2) << 12
}

impl KernelPort {
    /// Takes what came back with, or instead of, a message.
    fn reap(&mut self) {
        self.socket.take_returned(&mut self.returned);
        if self.returned.is_empty() {
            return;
        }
        self.counts.reaps.fetch_add(1, Relaxed);
        self.counts.returned.fetch_add(self.returned.len() as u64, Relaxed);
        for returned in self.returned.drain(..) {
            if let Some(buffer) = returned.buffer {
                self.counts.pinned.fetch_sub(pinned(buffer.len()), Relaxed);
                self.free.push(buffer);
            }
        }
    }

    fn lend(&mut self, message: &[u8], to: SocketAddr) -> Result<(), Refused> {
        let most = (self.most_bytes / message.len() as u64).max(LEAST);
        if self.socket.lent() as u64 >= most {
            return Err(Refused::Lent);
        }
        let buffer = match self.free.iter().rposition(|b| b.len() == message.len()) {
            Some(at) => {
                let mut buffer = self.free.swap_remove(at);
                // Payloads of one length are the same, but who checks them has them written, as a program would.
                let filled = if self.whole { message.len() } else { self.header };
                buffer[..filled].copy_from_slice(&message[..filled]);
                buffer
            }
            None => message.to_vec(),
        };
        let (error, buffer) = match self.socket.send_lent(buffer, to) {
            Ok(_cookie) => {
                let counts = &self.counts;
                counts.calls.fetch_add(1, Relaxed);
                counts.bytes.fetch_add(message.len() as u64, Relaxed);
                let now = counts.pinned.fetch_add(pinned(message.len()), Relaxed) + pinned(message.len());
                counts.pinned_max.fetch_max(now, Relaxed);
                return Ok(());
            }
            Err(refused) => refused,
        };
        self.free.extend(buffer);
        if matches!(error, KernelSendError::NoMemory) {
            // The limit of what may be pinned: this one is copied.
            self.counts.refused.fetch_add(1, Relaxed);
            return self.copy(message, to);
        }
        Err(error.into())
    }

    #[inline]
    fn copy(&self, message: &[u8], to: SocketAddr) -> Result<(), Refused> {
        Ok(self.socket.send_to(message, to)?)
    }
}

impl Port for KernelPort {
    fn wait(&mut self, want: Want, timeout: Duration) -> bool {
        // What comes back makes it readable. An error shows in the call that follows.
        self.socket.wait(true, want.room, Some(timeout)).is_ok_and(|ready| ready.readable)
    }

    fn receive(
        &mut self,
        mut take: impl FnMut(Incoming<'_>) -> Result<(), TaskFailure>,
    ) -> Result<(), TaskFailure> {
        loop {
            match self.socket.recv_from(&mut self.inbox) {
                Ok(KernelReceived::Message { full_len: len, from, .. }) => {
                    // A message that is too long was cut.
                    let bytes = self.inbox.get(..len).unwrap_or(&self.inbox);
                    take(Incoming::Message { bytes, len, from })?;
                }
                Ok(KernelReceived::CongestionCleared(mask)) => take(Incoming::Cleared(mask))?,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(broken(format_args!("cannot receive: {e}"))),
            }
            if self.lends {
                self.reap();
            }
        }
    }

    #[inline]
    fn send(&mut self, message: &[u8], _task: usize, to: SocketAddr) -> Result<(), Refused> {
        if self.lends && message.len() >= SHORTEST_LENT {
            self.lend(message, to)
        } else {
            self.copy(message, to)
        }
    }

    fn cancel(&mut self, to: SocketAddr) -> Result<Option<usize>, String> {
        self.socket.cancel_sent_to(to).map(|()| None).map_err(|e| e.to_string())
    }

    fn close(self) {}
}

impl From<KernelSendError> for Refused {
    fn from(error: KernelSendError) -> Self {
        match error {
            KernelSendError::Full => Self::Room,
            KernelSendError::Congested => Self::Congested,
            e => Self::Failed(e.to_string()),
        }
    }
}
