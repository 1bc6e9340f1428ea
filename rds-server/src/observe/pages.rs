//! What is answered to which path.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rds_core::info;

use super::cache::Cache;
use super::metrics;

const HTML: &str = "text/html; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The page's files: path, type, text.
const FILES: [(&str, &str, &str); 8] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/page.js", JS, include_str!("page/page.js")),
    ("/data.js", JS, include_str!("page/data.js")),
    ("/table.js", JS, include_str!("page/table.js")),
    ("/chart.js", JS, include_str!("page/chart.js")),
    ("/verdict.js", JS, include_str!("page/verdict.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Nothing but what is served here, nothing inline, in no frame.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// All that is served. `named`: whether the name by which a browser came here is looked at.
pub(super) fn router(cache: Cache, named: bool) -> Router {
    let mut router = Router::new()
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(Arc::new(cache));
    for (path, kind, text) in FILES {
        // A daemon of another version has other files.
        let file = ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text);
        router = router.route(path, get(move || std::future::ready(file)));
    }
    router
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is no such page\n") })
        .layer(middleware::from_fn_with_state(named, guard))
}

/// Refuses what is not to be answered, and says to browsers what they may do with the answer.
async fn guard(State(named): State<bool>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&request, named) {
        Some(refusal) => refusal.into_response(),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
    }
    response
}

fn refusal(request: &Request<Body>, named: bool) -> Option<(StatusCode, &'static str)> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are served\n"));
    }
    let headers = request.headers();
    let empty = |length: &header::HeaderValue| length.as_bytes() == b"0";
    if headers.contains_key(header::TRANSFER_ENCODING)
        || !headers.get_all(header::CONTENT_LENGTH).iter().all(empty)
    {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "a request here has no body\n"));
    }
    if named && !is_named_as_this_host(request.uri(), request.version(), headers) {
        let why = "come as localhost, 127.0.0.1 or [::1]: another name may be that of somebody else's page\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, why));
    }
    None
}

/// A page from elsewhere whose name was made to mean this host (DNS rebinding) could read everything; but its requests bear that name.
fn is_named_as_this_host(uri: &Uri, version: Version, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().is_ok_and(is_this_host),
        // No browser is as old as that.
        (None, _) => version < Version::HTTP_11,
        (Some(_), Some(_)) => false,
    };
    host && uri.authority().is_none_or(|authority| is_this_host(authority.as_str()))
}

/// The port may be another: that of a tunnel.
fn is_this_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, "0"),
    };
    let v6 = || name.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    port.parse::<u16>().is_ok()
        && (name.eq_ignore_ascii_case("localhost")
            || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
            || v6().is_some_and(|ip| ip.is_loopback()))
}

/// Facts of the moment are not kept.
fn now(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response {
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")];
    (status, headers, text.into()).into_response()
}

fn ill() -> Response {
    now(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the service thread does not answer\n")
}

async fn status(State(cache): State<Arc<Cache>>) -> Response {
    cache.get().await.map_or_else(ill, |shown| now(StatusCode::OK, "application/json", shown.json.clone()))
}

async fn metrics(State(cache): State<Arc<Cache>>) -> Response {
    cache.get().await.map_or_else(ill, |shown| now(StatusCode::OK, metrics::TYPE, shown.metrics.clone()))
}

async fn healthz(State(cache): State<Arc<Cache>>) -> Response {
    cache.get().await.map_or_else(ill, |_| now(StatusCode::OK, TEXT, "alive\n"))
}

async fn readyz(State(cache): State<Arc<Cache>>) -> Response {
    let Some(shown) = cache.get().await else { return ill() };
    let status = match shown.state {
        info::State::Ready => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    now(status, TEXT, format!("{}\n", shown.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_mean_this_host_everywhere_are_its_names() {
        for host in ["localhost", "LocalHost:9385", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:9385"] {
            assert!(is_this_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9385",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "10.0.0.1",
            "[fe80::1]:80",
            "::1",
            "localhost:",
            "localhost:99999",
            "localhost:80@evil.example",
            "evil@localhost",
            "0.0.0.0:80",
        ] {
            assert!(!is_this_host(host), "{host}");
        }
    }
}
