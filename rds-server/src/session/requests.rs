//! What a client asks for that cannot be done with the node's lock held.

use std::collections::HashMap;
use std::sync::Arc;

use rds_core::attach::{Sharing, Status};
use rds_core::events::note;
use rds_core::proto::BindError;
use rds_core::zerocopy::Mode;

use super::outlet::{Releases, Slot, Wanted};
use super::socket::Socket;
use super::submissions::Rest;
use super::waiting::Waiting;
use crate::access::{Kind, OverQuota};
use crate::broker::Member;
use crate::host::{Host, Refused};

/// Buffers of a socket that names none.
const DEFAULT_BUFFER: u64 = 1 << 20;
/// A socket is not bound if less than this is left of a quota for one of its buffers.
const LEAST_BUFFER: u64 = 64 << 10;

/// What cannot be done with the node's lock held, or must come after what the node tells.
pub(super) enum Request {
    Bind { request: u32, socket: u32, port: u16, sharing: Sharing, send_buffer: u64, receive_buffer: u64 },
    Close { request: u32, socket: u32, drain: bool },
    Cancelled { request: u32, count: usize },
    Snapshot { request: u32, queues: bool },
    Modes { request: u32, peer: std::net::IpAddr, send: Option<Mode>, receive: Option<Mode> },
}

impl Rest {
    pub(super) fn request(&mut self, host: &mut Host, request: Request) {
        match request {
            // It is asked of the next daemon again.
            Request::Bind { .. } if self.draining => {}
            Request::Bind { request, socket, port, sharing, send_buffer, receive_buffer } => {
                match self.bind(host, socket, port, sharing, send_buffer, receive_buffer) {
                    Ok((port, send, receive)) => {
                        let mut granted = [0; 16];
                        granted[..8].copy_from_slice(&send.to_ne_bytes());
                        granted[8..].copy_from_slice(&receive.to_ne_bytes());
                        self.outlet.reply(request, Status::Ok, port.into(), &granted);
                    }
                    Err((status, why)) => {
                        note!(BindRefused, client = self.id, port, reason = %why, "bind refused");
                        self.outlet.reply(request, status, 0, why.as_bytes());
                    }
                }
            }
            Request::Close { request, socket, drain } => {
                let status = match self.sockets.remove(&socket) {
                    Some(socket) => {
                        self.close(host, socket, drain);
                        Status::Ok
                    }
                    None => Status::NoSuchSocket,
                };
                self.outlet.reply(request, status, 0, &[]);
            }
            Request::Cancelled { request, count } => {
                // Their ends come first.
                self.outlet.flush();
                self.outlet.reply(request, Status::Ok, count as u64, &[]);
            }
            Request::Modes { request, peer, send, receive } => {
                let status = if self.privileged { Status::Ok } else { Status::NotAllowed };
                if self.privileged {
                    host.engine.set_zero_copy(peer, send, receive);
                }
                self.outlet.reply(request, status, 0, &[]);
            }
            Request::Snapshot { .. } => {}
        }
    }

    fn bind(
        &mut self,
        host: &mut Host,
        number: u32,
        port: u16,
        sharing: Sharing,
        send_buffer: u64,
        receive_buffer: u64,
    ) -> Result<(u16, u64, u64), (Status, String)> {
        if self.sockets.contains_key(&number) {
            return Err((Status::NoSuchSocket, format!("the client has a socket {number} already")));
        }
        let over = |quota: OverQuota| (Status::Quota, quota.to_string());
        let place = self.quota.take(Kind::Sockets, 1).map_err(over)?;
        let buffer = |kind, asked: u64| {
            let want = if asked == 0 { DEFAULT_BUFFER } else { asked };
            self.quota.take_up_to(kind, want, want.min(LEAST_BUFFER)).map_err(over)
        };
        let send_buffer = buffer(Kind::SendBytes, send_buffer)?;
        let receive_buffer = buffer(Kind::ReceiveBytes, receive_buffer)?;
        let slot = self.outlet.add(number, send_buffer.amount());
        let member = Member { outlet: Arc::clone(&self.outlet), slot };
        let (send, receive) = (send_buffer.amount(), receive_buffer.amount());
        match host.bind(port, sharing, &self.ports, member, send, receive) {
            Ok((bound, member)) => {
                let port = bound.local.port();
                let socket = Socket {
                    number,
                    slot,
                    bound,
                    member,
                    mode: None,
                    waiting: Waiting::default(),
                    late: Vec::new(),
                    told: Default::default(),
                    lingers: false,
                    releases: Arc::new(Releases { outlet: Arc::clone(&self.outlet), socket: number }),
                    send_buffer,
                    receive_buffer,
                    _place: place,
                };
                self.sockets.insert(number, socket);
                Ok((port, send, receive))
            }
            Err(refused) => {
                self.outlet.remove(slot);
                let status = match refused {
                    Refused::NotAllowed => Status::NotAllowed,
                    Refused::Node(BindError::Reserved) => Status::Reserved,
                    Refused::Node(BindError::InUse(_)) => Status::InUse,
                    Refused::Node(BindError::Exhausted) => Status::Exhausted,
                    Refused::Node(BindError::ShuttingDown) => Status::ShuttingDown,
                    Refused::Node(_) => Status::Unsupported,
                };
                Err((status, refused.to_string()))
            }
        }
    }

    fn close(&mut self, host: &mut Host, mut socket: Socket, drain: bool) {
        if !drain {
            socket.cancel_waiting(None);
        }
        socket.cancel_late(None);
        let send_buffer = socket.send_buffer.amount();
        let lingers = !socket.waiting.is_empty();
        host.leave(Arc::clone(&socket.bound), socket.member, send_buffer, drain, lingers);
        if lingers {
            socket.lingers = true;
            // A socket that gets its number later is not to get them.
            self.outlet.forget_messages(socket.slot);
            self.lingering.push(socket);
        } else {
            self.outlet.remove(socket.slot);
        }
    }

    /// Tries again what waits for ports that are free again.
    pub(super) fn retry(&mut self, host: &mut Host) {
        let wanted = self.outlet.take_wanted();
        if wanted.is_empty() {
            return;
        }
        let share = &self.share;
        let mut by_slot: HashMap<Slot, &mut Socket> = self
            .sockets
            .values_mut()
            .chain(&mut self.lingering)
            .map(|socket| (socket.slot, socket))
            .collect();
        host.engine.batch(|batch| {
            for wanted in wanted {
                match wanted {
                    Wanted::Uncongested(slot, to) => {
                        if let Some(socket) = by_slot.get_mut(&slot) {
                            socket.retry(batch, to, share);
                        }
                    }
                    Wanted::Writable(slot) => {
                        if let Some(socket) = by_slot.get_mut(&slot) {
                            socket.retry_all(batch, share);
                        }
                    }
                }
            }
        });
        self.forget_idle(host);
    }

    /// Tries again everything that waits.
    pub(super) fn retry_all(&mut self, host: &mut Host) {
        let share = &self.share;
        host.engine.batch(|batch| {
            for socket in self.sockets.values_mut().chain(&mut self.lingering) {
                socket.retry_all(batch, share);
            }
        });
        self.forget_idle(host);
    }

    /// Closed sockets that have sent everything go.
    fn forget_idle(&mut self, host: &mut Host) {
        for socket in self.lingering.extract_if(.., |socket| socket.waiting.is_empty()) {
            self.outlet.remove(socket.slot);
            host.forget(socket.bound, socket.member, socket.send_buffer.amount());
        }
    }
}
