//! Other settings, between two turns of the service thread.

use super::Service;
use crate::access::Rules;
use crate::settings::Settings;

impl Service {
    /// Uses these settings from now on. Nothing that clients have is taken away by that, and no message is touched, but those to peers that are
    /// refused now. What is fixed when a node is opened stays as it is.
    pub(super) fn reload(&mut self, settings: Settings) {
        let old = std::mem::replace(&mut self.settings, settings);
        // Where it is: at the one that was passed, whatever is configured.
        self.settings.socket.clone_from(&old.socket);
        let new = &self.settings;
        self.table.set_quotas(new.quotas);
        for host in &self.hosts {
            if new.peers != old.peers {
                host.engine.set_peers(new.peers.clone());
            }
            if new.zero_copy_send != old.zero_copy_send {
                host.engine.set_zero_copy_send(new.zero_copy_send);
            }
        }
        if (new.pinned_per_client, new.pinned_per_user) != (old.pinned_per_client, old.pinned_per_user) {
            self.limit_pins();
        }
        self.look_at_clients(&old);
    }

    fn limit_pins(&self) {
        for ((host, _), cap) in &self.pin_caps {
            if let Some(cap) = cap.upgrade() {
                self.hosts[*host].engine.set_pin_cap(&cap, self.pins_of_user(*host));
            }
        }
        for client in self.clients.values() {
            let limit = self.pins_of_client(client.host);
            self.hosts[client.host].engine.set_pin_share(client.session.share(), limit);
        }
    }

    /// Bytes that may be pinned for a client at a node.
    pub(super) fn pins_of_client(&self, host: usize) -> Option<u64> {
        self.settings.pinned_per_client.or(self.hosts[host].engine.pin_limit().map(|limit| limit / 4))
    }

    /// Bytes that may be pinned for all clients of a user at a node.
    pub(super) fn pins_of_user(&self, host: usize) -> Option<u64> {
        self.settings.pinned_per_user.or(self.hosts[host].engine.pin_limit().map(|limit| limit / 2))
    }

    fn look_at_clients(&mut self, old: &Settings) {
        let new = &self.settings;
        let rules = (new.rules != old.rules).then(|| Rules::new(new.rules.clone()));
        let mut unwelcome = 0;
        for client in self.clients.values_mut() {
            unwelcome += usize::from(!new.attach.allows(client.session.who()));
            if let Some(rules) = &rules {
                let ports = rules.ports(client.session.who(), self.hosts[client.host].address());
                client.session.set_ports(ports);
            }
        }
        if unwelcome > 0 && new.attach != old.attach {
            tracing::warn!(
                programs = unwelcome,
                "are attached although their users may not attach any more; they stay until they detach"
            );
        }
    }
}
