//! The daemon's status, for many readers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use rds_core::info::{State, Status};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout};

use super::metrics;
use crate::service::Calls;

/// How old a status may be that is shown: the service thread is asked four times a second, however many readers there are.
const FRESH: Duration = Duration::from_millis(250);
/// How long the service thread may take to answer before the daemon counts as ill.
const PATIENCE: Duration = Duration::from_secs(2);

/// A status as it is shown.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) state: State,
    pub(super) json: Bytes,
    pub(super) metrics: Bytes,
}

impl Shown {
    fn new(status: &Status) -> Self {
        // Numbers, texts and lists alone: nothing that could fail.
        let json = serde_json::to_vec(status).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}").into());
        Self { state: status.state, json: json.into(), metrics: metrics::render(status).into() }
    }
}

#[derive(Debug, Default)]
struct Last {
    /// When the service thread last answered, or was last found not to.
    at: Option<Instant>,
    shown: Option<Arc<Shown>>,
    /// It was asked and has not answered yet: it is not asked once more.
    asked: Option<oneshot::Receiver<Status>>,
}

/// Asks the service thread.
#[derive(Debug)]
pub(super) struct Cache {
    calls: Arc<Calls>,
    patience: Duration,
    /// Held while it is asked: all who come meanwhile have the same answer.
    last: Mutex<Last>,
}

impl Cache {
    pub(super) fn new(calls: Arc<Calls>) -> Self {
        Self { calls, patience: PATIENCE, last: Mutex::default() }
    }

    /// The status, at most a quarter of a second old; `None` if the service thread does not answer in time.
    pub(super) async fn get(&self) -> Option<Arc<Shown>> {
        let mut last = self.last.lock().await;
        if last.at.is_some_and(|at| at.elapsed() < FRESH) {
            return last.shown.clone();
        }
        let mut asked = match last.asked.take() {
            Some(asked) => asked,
            None => {
                let (to, asked) = oneshot::channel();
                // Who has given up waiting needs nothing. Without room in the list, the sender is dropped, which ends the wait.
                self.calls.ask_status(move |status| _ = to.send(status));
                asked
            }
        };
        let answer = timeout(self.patience, &mut asked).await;
        last.at = Some(Instant::now());
        last.shown = match answer {
            Ok(answer) => answer.ok().map(|status| Arc::new(Shown::new(&status))),
            Err(_) => {
                last.asked = Some(asked);
                None
            }
        };
        last.shown.clone()
    }
}
