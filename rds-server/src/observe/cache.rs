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
    pub(super) async fn get(self: &Arc<Self>) -> Option<Arc<Shown>> {
        let this = Arc::clone(self);
        // A task of its own: a reader that goes away meanwhile must not take the answer with it, or the next one would ask again at once.
        tokio::spawn(async move { this.look().await }).await.ok()?
    }

    async fn look(&self) -> Option<Arc<Shown>> {
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

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use rds_core::info::ConfigInfo;

    use super::*;
    use crate::observe::pages;

    fn calls() -> (mio::Poll, Arc<Calls>) {
        let poll = mio::Poll::new().unwrap();
        let calls = Calls::new(poll.registry(), mio::Token(0), ConfigInfo::default()).unwrap();
        (poll, calls)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(future)
    }

    async fn code(router: &axum::Router, path: &str) -> StatusCode {
        let service = hyper_util::service::TowerToHyperService::new(router.clone());
        let request =
            axum::http::Request::get(path).header("host", "localhost").body(axum::body::Body::empty());
        hyper::service::Service::call(&service, request.unwrap()).await.unwrap().status()
    }

    #[test]
    fn a_service_thread_that_does_not_answer_makes_the_daemon_ill_and_is_not_asked_again_meanwhile() {
        let (_poll, calls) = calls();
        let mut cache = Cache::new(Arc::clone(&calls));
        cache.patience = Duration::from_millis(10);
        let router = pages::router(cache, true);
        run(async {
            for path in ["/healthz", "/readyz", "/status", "/metrics"] {
                assert_eq!(code(&router, path).await, StatusCode::SERVICE_UNAVAILABLE, "{path}");
                tokio::time::sleep(FRESH).await;
            }
            assert_eq!(code(&router, "/").await, StatusCode::OK, "the page says so itself");
            let tasks = calls.tasks();
            assert_eq!(tasks.len(), 1);
            // It comes round.
            for task in tasks {
                if let crate::service::Task::Status(tell) = task {
                    tell(Status::new("1", 1));
                }
            }
            tokio::time::sleep(FRESH).await;
            assert_eq!(code(&router, "/healthz").await, StatusCode::OK);
            assert!(calls.tasks().is_empty());
        });
    }

    #[test]
    fn readers_that_go_away_before_they_are_answered_do_not_have_it_asked_again() {
        let (_poll, calls) = calls();
        let cache = Arc::new(Cache::new(Arc::clone(&calls)));
        run(async {
            for _ in 0..10 {
                // Dropped while it waits, as that of a connection that was reset.
                assert!(timeout(Duration::from_millis(1), cache.get()).await.is_err());
            }
            let tasks = calls.tasks();
            assert_eq!(tasks.len(), 1, "each of them has a snapshot of every node taken");
            for task in tasks {
                if let crate::service::Task::Status(tell) = task {
                    tell(Status::new("1", 1));
                }
            }
            assert!(cache.get().await.is_some());
            assert!(calls.tasks().is_empty(), "the answer was there");
        });
    }

    #[test]
    fn many_readers_cost_the_service_thread_one_answer() {
        let (_poll, calls) = calls();
        let cache = Arc::new(Cache::new(Arc::clone(&calls)));
        run(async {
            let mut readers = tokio::task::JoinSet::new();
            for _ in 0..1000 {
                let cache = Arc::clone(&cache);
                readers.spawn(async move { cache.get().await.is_some() });
            }
            while calls.tasks().into_iter().all(|task| match task {
                crate::service::Task::Status(tell) => {
                    let mut status = Status::new("1", 1);
                    status.state = State::Draining;
                    tell(status);
                    false
                }
                _ => true,
            }) {
                tokio::task::yield_now().await;
            }
            assert!(readers.join_all().await.into_iter().all(|answered| answered));
            assert!(calls.tasks().is_empty(), "asked once more");
        });
    }
}
