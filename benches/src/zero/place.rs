//! Where traffic goes: over this machine's loopback, which copies pinned pages, or over one that does not.

use std::fmt;

use clap::ValueEnum;
use rds_tests::netns::Namespace;
use rds_tests::xdp::XdpPass;

/// Which paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// Loopback. The kernel copies what was pinned.
    Loopback,
    /// Loopback of a private network namespace with a program at XDP_PASS, through which the kernel does not copy. Needs root.
    Uncopied,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::Uncopied => "path that does not copy (XDP_PASS on lo of a namespace)",
        })
    }
}

/// A path that is there.
pub(crate) enum Place {
    /// The namespace of this process.
    Here,
    /// A private one.
    Namespace { namespace: &'static Namespace, pass: Option<XdpPass<'static>> },
}

impl Place {
    /// Makes it.
    pub(crate) fn open(path: Path) -> Result<Self, String> {
        match path {
            Path::Loopback => Ok(Self::Here),
            Path::Uncopied => {
                let mut place = Self::private()?;
                place.set_copying(false)?;
                Ok(place)
            }
        }
    }

    /// A private namespace, which copies for now.
    pub(crate) fn private() -> Result<Self, String> {
        let namespace = Namespace::new().map_err(|e| e.to_string())?;
        // As long as the program: the XDP program refers to it.
        Ok(Self::Namespace { namespace: Box::leak(Box::new(namespace)), pass: None })
    }

    /// Whether the path copies from now on.
    pub(crate) fn set_copying(&mut self, copying: bool) -> Result<(), String> {
        let Self::Namespace { namespace, pass } = self else {
            return if copying { Ok(()) } else { Err("loopback of this machine always copies".to_owned()) };
        };
        *pass = None;
        if !copying {
            *pass = Some(XdpPass::attach(namespace).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    /// Runs `inside` there.
    pub(crate) fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Here => inside(),
            Self::Namespace { namespace, .. } => namespace.run(inside),
        }
    }
}
