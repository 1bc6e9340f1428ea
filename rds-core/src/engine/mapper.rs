//! How a connection reads so that large payloads can be mapped (TCP_ZEROCOPY_RECEIVE) instead of copied.
//!
//! A payload can be mapped only if none of it was read before, so what comes before it must be read exactly. Once a message that may be
//! mapped has come, the connection therefore reads *by headers*:
//!
//! * Inside a payload that is mapped, a call maps what is there of it, and brings the next header with it.
//! * Inside a payload that is copied, a read takes the rest of it and the next header.
//! * Between messages a call without room for more than a page tells how many bytes cannot be mapped; they are read.
//!
//! With none but small messages for a while it goes back to reading all that is there. A payload that cannot be mapped to its end is
//! copied, what was mapped of it too: the message is whole, and the next one is tried again.

use std::io::{self, Read as _};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::maps::{MapPath, Maps};
use crate::buffer::{Filling, Memory, Pool};
use crate::proto::{ConnId, Time};
use crate::sys::cpu::thread_cpu_time;
use crate::sys::region::{MapTarget, NoRoom, PathRegion};
use crate::sys::vectored;
use crate::wire::HEADER_LEN;
use crate::zerocopy::map_controller::AUTO_MINIMUM;
use crate::zerocopy::{CopyReason, Mode};

/// So many reads between messages without a large one, and headers are no longer looked for.
const PATIENCE: u32 = 256;

/// What one read brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    /// Bytes in the buffer, to be fed after the message within which the stream stands.
    pub(super) input: usize,
    /// Bytes that were read, that is copied by the kernel.
    pub(super) read: usize,
    /// That message is whole, or there is input.
    pub(super) feed: bool,
    /// Nothing was left in the socket, so an event will tell of more.
    pub(super) empty: bool,
    /// The stream has ended.
    pub(super) end: bool,
}

/// What is known of the message within which the stream stands.
struct Large {
    len: usize,
    /// Why it is copied, unless it is mapped.
    copied: Option<CopyReason>,
    /// CPU time spent on it, if it is measured.
    cpu: Option<Duration>,
}

/// One connection's way of reading.
pub(super) struct Mapper {
    id: ConnId,
    maps: Arc<Maps>,
    path: Arc<MapPath>,
    region: Option<PathRegion>,
    /// The kernel does not map, or not on this connection.
    unavailable: bool,
    /// Reads by headers.
    exact: bool,
    /// Reads between messages since the last large one.
    quiet: u32,
    /// The pages of the message within which the stream stands.
    run: Option<MapTarget>,
    /// Pages for what is between messages, where nothing should be mapped.
    between: Option<MapTarget>,
    large: Option<Large>,
    /// The last call that was to map a payload brought nothing although something was there.
    stuck: bool,
    /// An error that the socket told while it was read by mapping; it does not tell it again.
    error: Option<io::Error>,
    /// CPU time of unmapping a page.
    zap_cost: Duration,
    /// Used since the last look.
    active: bool,
}

impl Mapper {
    pub(super) fn new(maps: &Arc<Maps>, id: ConnId, peer: IpAddr, mode: Mode) -> Self {
        Self {
            id,
            maps: Arc::clone(maps),
            path: maps.add(id, peer, mode),
            region: None,
            unavailable: false,
            exact: false,
            quiet: 0,
            run: None,
            between: None,
            large: None,
            stuck: false,
            error: None,
            zap_cost: Duration::ZERO,
            active: false,
        }
    }

    /// Whether the connection is to be read with [`Mapper::read`].
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    /// The error with which the stream has ended, if it was told already.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    // ---- messages ------------------------------------------------------------------------------------------------

    /// The stream stands within a message, of which nothing or a part was read: decides how the rest comes. `announced`: the peer
    /// sends so that it can be mapped. `wanted`: what the socket says.
    pub(super) fn begin(&mut self, now: Time, target: &Filling, announced: bool, wanted: Option<Mode>) {
        let len = target.capacity();
        if len < self.maps.page_size() {
            return;
        }
        let path = Arc::clone(&self.path);
        let mut state = path.state();
        let whole = len.is_multiple_of(self.maps.page_size());
        let eligible = match wanted {
            Some(Mode::Off) => false,
            Some(Mode::On) => whole && announced,
            _ => state.deciding(wanted).is_eligible(len, announced),
        };
        let mut cpu = None;
        let copied = if self.unavailable {
            Some(CopyReason::Unavailable)
        } else if !eligible {
            Some(self.ineligible(wanted.unwrap_or(state.controller.mode()), len, announced))
        } else {
            self.quiet = 0;
            self.active = true;
            let late = !std::mem::replace(&mut self.exact, true) && target.filled() > 0;
            let controller = state.deciding(wanted);
            let map = !late && (wanted == Some(Mode::On) || controller.choose(now, len, announced));
            let measure = !late && wanted != Some(Mode::On) && controller.measure();
            cpu = measure.then_some(Duration::ZERO);
            match (late, map) {
                (true, _) => Some(CopyReason::Late),
                (_, false) => Some(CopyReason::Controller),
                _ if target.filled() > 0 => {
                    state.each(|c| c.mapped(now, len, false, None));
                    cpu = None;
                    Some(CopyReason::Unaligned)
                }
                _ => self.start(len),
            }
        };
        if let Some(region) = &self.region {
            (state.lent_pages, state.used_pages) = (region.lent_pages(), region.used_pages());
            state.counts.zaps = region.zaps();
        }
        self.large = Some(Large { len, copied, cpu });
    }

    /// Large messages came whole with what was read at once: bytes of all, and of the largest.
    pub(super) fn passed(&mut self, large: (u64, u32), announced: bool) {
        let mut state = self.path.state();
        let len = large.1 as usize;
        let reason = if self.unavailable {
            CopyReason::Unavailable
        } else if !state.controller.is_eligible(len, announced) {
            self.ineligible(state.controller.mode(), len, announced)
        } else if self.exact {
            CopyReason::Unaligned
        } else {
            (self.exact, self.active, self.quiet) = (true, true, 0);
            CopyReason::Late
        };
        state.counts.copied(reason, usize::try_from(large.0).unwrap_or(usize::MAX));
    }

    /// Why a message may not be mapped.
    fn ineligible(&self, mode: Mode, len: usize, announced: bool) -> CopyReason {
        let whole = len.is_multiple_of(self.maps.page_size());
        match mode {
            Mode::Off => CopyReason::Setting,
            _ if !announced => CopyReason::NotAnnounced,
            Mode::Auto if whole && len >= AUTO_MINIMUM => CopyReason::Controller,
            _ => CopyReason::Length,
        }
    }

    /// The path's address space.
    fn region(&mut self) -> Option<&mut PathRegion> {
        if self.region.is_none() {
            self.region = self.maps.region();
            self.unavailable = self.region.is_none();
            self.exact = !self.unavailable;
        }
        self.region.as_mut()
    }

    /// Takes pages for a message. Returns why it must be copied, if it must.
    fn start(&mut self, len: usize) -> Option<CopyReason> {
        let pages = u32::try_from(len / self.maps.page_size()).unwrap_or(u32::MAX);
        let Some(region) = self.region() else { return Some(CopyReason::Unavailable) };
        let (zaps, used, start) = (region.zaps(), region.used_pages(), Instant::now());
        let run = region.target(pages);
        let zapped = (region.zaps() != zaps).then(|| used.saturating_sub(region.used_pages()));
        if let Some(each) = zapped.and_then(|pages| start.elapsed().checked_div(pages)) {
            // By a clock that goes on while others have the processor: what is far too long is not believed.
            self.zap_cost = if self.zap_cost.is_zero() {
                each
            } else {
                (7 * self.zap_cost + each.min(2 * self.zap_cost)) / 8
            };
        }
        match run {
            Ok(run) => {
                self.run = Some(run);
                None
            }
            Err(NoRoom::Held) => Some(CopyReason::Held),
            Err(NoRoom::Limit) => Some(CopyReason::Limit),
        }
    }

    /// A message is whole.
    pub(super) fn finished(&mut self, now: Time, target: &Filling) {
        let Some(Large { len, copied, cpu }) = self.large.take() else { return };
        let mut state = self.path.state();
        match copied {
            None if target.is_mapped() => {
                state.counts.messages += 1;
                state.counts.bytes += len as u64;
                let pages = u32::try_from(len / self.maps.page_size()).unwrap_or(u32::MAX);
                let cpu = cpu.map(|cpu| cpu + self.zap_cost.saturating_mul(pages));
                state.each(|c| c.mapped(now, len, true, cpu));
            }
            None => {}
            Some(reason) => {
                state.counts.copied(reason, len);
                if reason == CopyReason::Controller {
                    state.each(|c| c.copied(now, len, cpu));
                }
            }
        }
    }

    // ---- reading -------------------------------------------------------------------------------------------------

    /// Reads once, into the message within which the stream stands, or into `buffer`, or both. `hangup`: the socket has said
    /// that its end is near.
    ///
    /// # Errors
    /// As of a read.
    pub(super) fn read(
        &mut self,
        now: Time,
        stream: &TcpStream,
        hangup: bool,
        target: &mut Option<Filling>,
        pool: &Pool,
        buffer: &mut [u8],
    ) -> io::Result<Read> {
        let start = self.large.as_ref().is_some_and(|l| l.cpu.is_some()).then(thread_cpu_time);
        let read = match target {
            Some(filling) if self.run.is_some() => self.map(now, stream, hangup, filling, pool, buffer),
            Some(filling) => copy(stream, filling, pool, buffer),
            None => self.between(stream, hangup, buffer),
        };
        if let (Some(start), Some(Large { cpu: Some(cpu), .. })) = (start, &mut self.large) {
            *cpu += thread_cpu_time().saturating_sub(start);
        }
        read
    }

    /// Maps what is there of a payload.
    fn map(
        &mut self,
        now: Time,
        stream: &TcpStream,
        hangup: bool,
        filling: &mut Filling,
        pool: &Pool,
        buffer: &mut [u8],
    ) -> io::Result<Read> {
        let (Some(mut run), Some(region)) = (self.run.take(), &mut self.region) else {
            return Ok(Read::default());
        };
        let mut header = [0; HEADER_LEN];
        let mapped = match run.receive(stream.as_fd(), Some(&mut header)) {
            Ok(mapped) => mapped,
            Err(error) => {
                tracing::debug!(%error, "TCP_ZEROCOPY_RECEIVE; messages of this connection are copied");
                self.unavailable = true;
                self.give_up(now, run, filling, pool, &[]);
                return Ok(Read::default());
            }
        };
        let after = &header[..mapped.header_bytes];
        let mut state = self.path.state();
        state.counts.calls += 1;
        state.counts.mapped_bytes += mapped.bytes as u64;
        state.counts.pages += (mapped.bytes / self.maps.page_size()) as u64;
        self.error = mapped.socket_error.or(self.error.take());
        if mapped.end {
            return Ok(Read { end: true, ..Read::default() });
        }
        // It may have come meanwhile. But of what lies behind an urgent byte of the peer's (tcp(7)) the kernel says for ever that it is
        // there, and maps none: only a read goes past it.
        let stuck = mapped.bytes == 0 && mapped.inq > 0;
        let stuck = std::mem::replace(&mut self.stuck, stuck) && stuck;
        if run.missing() > 0 {
            drop(state);
            if mapped.skip_hint > 0 || !after.is_empty() || stuck {
                self.give_up(now, run, filling, pool, after);
                return Ok(Read::default());
            }
            self.run = Some(run);
            return if mapped.bytes == 0 && mapped.inq == 0 {
                nothing(stream, hangup)
            } else {
                Ok(Read { empty: mapped.inq == 0, ..Read::default() })
            };
        }
        state.counts.headers += u64::from(after.len() == HEADER_LEN);
        drop(state);
        let (pages, surplus) = region.finish(run);
        filling.place(Memory::Mapped(pages));
        let mut input = 0;
        for piece in [surplus.as_deref().unwrap_or_default(), after] {
            buffer[input..input + piece.len()].copy_from_slice(piece);
            input += piece.len();
        }
        let more = gather(stream, mapped.skip_hint, &mut buffer[input..]);
        Ok(Read {
            input: input + more,
            read: after.len() + more,
            feed: true,
            empty: mapped.inq as usize == more,
            end: false,
        })
    }

    /// A payload cannot be mapped to its end: it is copied.
    fn give_up(&mut self, now: Time, run: MapTarget, filling: &mut Filling, pool: &Pool, after: &[u8]) {
        filling.place(pool.memory(filling.capacity()));
        filling.extend(run.mapped());
        filling.extend(after);
        if let Some(region) = &mut self.region {
            let _ = region.finish(run);
        }
        if let Some(large) = &mut self.large {
            large.copied =
                Some(if self.unavailable { CopyReason::Unavailable } else { CopyReason::Unaligned });
            large.cpu = None;
            let len = large.len;
            self.path.state().each(|c| c.mapped(now, len, false, None));
        }
        self.exact = !self.unavailable;
    }

    /// Reads what is between messages, so that it does not take a payload that can be mapped.
    fn between(&mut self, stream: &TcpStream, hangup: bool, buffer: &mut [u8]) -> io::Result<Read> {
        self.quiet += 1;
        self.active = true;
        let target = match self.between.take() {
            Some(target) => Ok(target),
            None => self.region().ok_or(NoRoom::Held).and_then(|region| region.target(1)),
        };
        let (Ok(mut target), true) = (target, self.quiet <= PATIENCE) else {
            self.exact = false;
            return bulk(stream, buffer);
        };
        let mut header = [0; HEADER_LEN];
        let mapped = match target.receive(stream.as_fd(), Some(&mut header)) {
            Ok(mapped) => mapped,
            Err(error) => {
                tracing::debug!(%error, "TCP_ZEROCOPY_RECEIVE; messages of this connection are copied");
                (self.unavailable, self.exact) = (true, false);
                return bulk(stream, buffer);
            }
        };
        self.path.state().counts.probes += 1;
        self.error = mapped.socket_error.or(self.error.take());
        if mapped.end {
            return Ok(Read { end: true, ..Read::default() });
        }
        // A peer whose segments are no whole pages may have a header at the beginning of a page.
        let mut input = target.mapped().len();
        buffer[..input].copy_from_slice(target.mapped());
        if input == 0 {
            self.between = Some(target);
        } else if let Some(region) = &mut self.region {
            let _ = region.finish(target);
        }
        buffer[input..input + mapped.header_bytes].copy_from_slice(&header[..mapped.header_bytes]);
        input += mapped.header_bytes;
        let more = gather(stream, mapped.skip_hint, &mut buffer[input..]);
        input += more;
        if input == 0 && mapped.inq == 0 {
            return nothing(stream, hangup);
        }
        Ok(Read {
            input,
            read: mapped.header_bytes + more,
            feed: input > 0,
            empty: mapped.inq as usize == more,
            end: false,
        })
    }

    // ---- idleness ------------------------------------------------------------------------------------------------

    /// To be called from time to time: a path without traffic keeps no pages.
    pub(super) fn tick(&mut self) {
        if std::mem::take(&mut self.active) || self.run.is_some() {
            return;
        }
        self.between = None;
        if let Some(region) = &mut self.region {
            region.idle();
            let mut state = self.path.state();
            (state.lent_pages, state.used_pages) = (region.lent_pages(), region.used_pages());
            state.counts.zaps = region.zaps();
        }
    }

    /// Whether [`Mapper::tick`] is worth a call.
    pub(super) fn is_active(&self) -> bool {
        self.active
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.maps.remove(self.id);
    }
}

/// Reads the rest of a message, and a header behind it.
fn copy(stream: &TcpStream, filling: &mut Filling, pool: &Pool, buffer: &mut [u8]) -> io::Result<Read> {
    if !filling.has_memory() {
        filling.place(pool.memory(filling.capacity()));
    }
    let missing = filling.missing();
    let header = &mut buffer[..HEADER_LEN];
    let n = vectored::read(stream.as_fd(), &mut filling.unfilled(), header)?;
    filling.advance(n.min(missing));
    Ok(Read {
        input: n.saturating_sub(missing),
        read: n,
        feed: n >= missing,
        empty: n < missing + HEADER_LEN,
        end: n == 0,
    })
}

/// Reads all that is there.
fn bulk(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<Read> {
    let n = stream.read(buffer)?;
    Ok(Read { input: n, read: n, feed: n > 0, empty: n < buffer.len(), end: n == 0 })
}

/// Reads bytes that are there and cannot be mapped.
fn gather(mut stream: &TcpStream, skip_hint: u32, buffer: &mut [u8]) -> usize {
    let n = (skip_hint as usize).min(buffer.len());
    if n == 0 {
        return 0;
    }
    // What goes wrong here goes wrong again at the next read.
    stream.read(&mut buffer[..n]).unwrap_or(0)
}

/// A call by which pages are mapped found nothing: it cannot tell an end after an error from a silent peer.
fn nothing(stream: &TcpStream, hangup: bool) -> io::Result<Read> {
    if !hangup {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(Read { end: stream.peek(&mut [0])? == 0, ..Read::default() })
}

#[cfg(test)]
#[path = "mapper_tests.rs"]
mod tests;
