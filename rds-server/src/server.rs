//! The whole daemon as a value.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rds_core::engine::{Engine, OpenError};

use crate::doctor::{Machine, holder, holder::Holder};
use crate::host::Host;
use crate::life::{AdminSocket, Inherited, Note};
use crate::listener::{ListenError, Listener};
use crate::observe::admin::{self, Admin, AdminError};
use crate::remember::Remembered;
use crate::service::{Calls, DrainReport, Service};
use crate::settings::{AdminAddress, Settings};

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No address was given.
    #[error("no node to serve: give an address of this host with --address")]
    NoAddress,
    /// An address was given twice.
    #[error("address {0} is given twice")]
    Twice(IpAddr),
    /// A node cannot be opened.
    #[error("the node at {address}: {source}{}", holder.as_ref().map(|holder| format!("; {holder} has it")).unwrap_or_default())]
    Node {
        /// Which.
        address: IpAddr,
        /// Why.
        source: OpenError,
        /// Who has its TCP port, where that is what is wrong.
        holder: Option<Holder>,
    },
    /// Programs could not attach.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin pages could not be served.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// Anything else.
    #[error("cannot start the thread that serves clients: {0}")]
    Thread(#[from] io::Error),
}

/// A daemon that runs. Dropping it ends it, in an orderly way.
#[derive(Debug)]
pub struct Server {
    calls: Arc<Calls>,
    thread: Option<JoinHandle<io::Result<DrainReport>>>,
    engines: Vec<Engine>,
    socket: PathBuf,
    admin: Option<Admin>,
}

impl Server {
    /// Opens the nodes and listens; threads of its own do the rest.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(settings, Inherited::default())
    }

    /// The same, with sockets that listen already, instead of those that the settings name.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(mut settings: Settings, inherited: Inherited) -> Result<Self, StartError> {
        if settings.addresses.is_empty() {
            return Err(StartError::NoAddress);
        }
        for (n, address) in settings.addresses.iter().enumerate() {
            if settings.addresses[..n].contains(address) {
                return Err(StartError::Twice(*address));
            }
        }
        // First: who is told that another daemon is there need not be told of its ports.
        let note = Note::of_this(&settings.addresses);
        let listener = match inherited.programs {
            Some(socket) => Listener::inherit(socket, &note)?,
            None => Listener::bind(&settings.socket, settings.mode, settings.owner, settings.group, &note)?,
        };
        listener.path().clone_into(&mut settings.socket);
        let socket = settings.socket.clone();
        let admin = match inherited.admin {
            Some(AdminSocket::Unix(socket)) => Some(admin::Open::unix(socket)?),
            Some(AdminSocket::Tcp(socket)) => Some(admin::Open::tcp(socket)?),
            None => {
                settings.admin.as_ref().map(|address| admin::Open::bind(address, &settings)).transpose()?
            }
        };
        let mut engines = Vec::new();
        for &address in &settings.addresses {
            let engine = Engine::open_paused(settings.options(address));
            engines.push(engine.map_err(|source| node_error(address, source))?);
        }
        let (remembered, mut expected) = Remembered::new(listener.notes()?, note.line());
        let remembered = Arc::new(remembered);
        let hosts = engines.iter().map(|engine| {
            Host::new(engine.clone(), Arc::clone(&remembered), expected.remove(&engine.address()))
        });
        let service = Service::new(settings, hosts.collect::<Result<_, _>>()?, listener, remembered)?;
        let calls = service.calls();
        let thread =
            std::thread::Builder::new().name("rds service".to_owned()).spawn(move || service.run())?;
        let mut server = Self { calls, thread: Some(thread), engines, socket, admin: None };
        // If it cannot be, what was started ends with this.
        server.admin = admin.map(|open| Admin::serve(open, server.calls())).transpose()?;
        Ok(server)
    }

    /// Where programs attach.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where the admin pages are served, with the port that they got; `None` if they are not.
    #[must_use]
    pub fn admin(&self) -> Option<&AdminAddress> {
        self.admin.as_ref().map(Admin::address)
    }

    /// The nodes, in the order of the addresses.
    #[must_use]
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Delivers what is queued, within the time that the settings give, tells the clients, and ends. Blocks until then. Returns what became of it.
    ///
    /// # Errors
    /// What ended it before.
    pub fn stop(mut self) -> io::Result<DrainReport> {
        self.end()
    }

    /// Blocks until it ends by itself, which it does only when it cannot poll any more.
    ///
    /// # Errors
    /// Why.
    pub fn join(mut self) -> io::Result<DrainReport> {
        self.wait()
    }

    /// To have it end from another thread ([`Calls::stop`]).
    #[must_use]
    pub fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.calls)
    }

    fn end(&mut self) -> io::Result<DrainReport> {
        self.calls.stop();
        self.wait()
    }

    fn wait(&mut self) -> io::Result<DrainReport> {
        let ended = self.thread.take().map(JoinHandle::join);
        // The pages show the drain to its end.
        self.admin = None;
        match ended {
            // It has been waited for.
            None => Ok(DrainReport::default()),
            Some(Ok(result)) => result,
            // It was reported where it happened.
            Some(Err(_)) => Err(io::Error::other("the thread that serves clients panicked")),
        }
    }
}

fn node_error(address: IpAddr, source: OpenError) -> StartError {
    let holder = match source {
        OpenError::PortInUse(at) => match holder::of(&Machine::this(), at) {
            Holder::Nobody => None,
            holder => Some(holder),
        },
        _ => None,
    };
    StartError::Node { address, source, holder }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody is left to hear of it.
        let _ = self.end();
    }
}
