//! A daemon of this process, in a folder of its own.
#![allow(dead_code)]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rds_client::Node;
use rds_server::server::Server;
use rds_server::settings::Settings;
use tempfile::TempDir;

pub(crate) mod honest;
pub(crate) mod raw;

/// TCP port of all nodes here.
pub(crate) const PORT: u16 = 26_743;
/// Longer than anything here takes, so that a test that hangs fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) struct Daemon {
    pub(crate) server: Option<Server>,
    settings: Settings,
    folder: TempDir,
}

impl Daemon {
    /// Serves these addresses.
    pub(crate) fn at(addresses: &[&str]) -> Self {
        Self::with(addresses, |_| {})
    }

    pub(crate) fn with(addresses: &[&str], change: impl FnOnce(&mut Settings)) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let folder = tempfile::tempdir().expect("a folder");
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        let mut settings = Settings::new(addresses);
        settings.socket = folder.path().join("rds.sock");
        settings.listen_port = PORT;
        settings.dial_port = PORT;
        settings.drain = Duration::from_secs(1);
        change(&mut settings);
        let server = Server::start(settings.clone()).unwrap_or_else(|e| panic!("{e}"));
        Self { server: Some(server), settings, folder }
    }

    /// Ends it, and starts another in its place.
    pub(crate) fn restart(&mut self) {
        self.server = None;
        let server = Server::start(self.settings.clone()).unwrap_or_else(|e| panic!("{e}"));
        self.server = Some(server);
    }

    /// Has it use other settings from now on.
    pub(crate) fn reload(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
        let server = self.server.as_ref().expect("it runs");
        server.calls().reload(self.settings.clone(), LONG).unwrap_or_else(|e| panic!("{e}"));
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("rds.sock")
    }

    pub(crate) fn attach(&self) -> Node {
        attach(&self.path())
    }
}

pub(crate) fn attach(path: &Path) -> Node {
    Node::attach(path).unwrap_or_else(|e| panic!("{e}"))
}
