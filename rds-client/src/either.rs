//! One API over two kinds of node.

/// A node of this program's own, or one of a daemon; likewise a socket.
#[derive(Clone, Debug)]
pub(crate) enum Kind<E, A> {
    Embedded(E),
    Attached(A),
}

/// The same call on either kind.
macro_rules! either {
    ($kind:expr, $it:ident => $call:expr) => {
        match $kind {
            $crate::either::Kind::Embedded($it) => $call,
            $crate::either::Kind::Attached($it) => $call,
        }
    };
}

pub(crate) use either;
