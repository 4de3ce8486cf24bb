//! `/health`, `/status`, `/metrics` and `/cache/memory/drop`, on a thread of their own.

use crate::admin::{Admin, AdminRequest, Dropped, Stuck};
use crate::metrics;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

/// How long a request waits for writes to end, and how often it looks.
const WRITES_PATIENCE: Duration = Duration::from_secs(10);
const WRITES_PAUSE: Duration = Duration::from_millis(20);

/// Serves on a listener that is bound already, so that its address is known and errors are early.
pub(crate) fn start(listener: TcpListener, admin: Admin) -> io::Result<SocketAddr> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("orbitkv-http".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let served = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => axum::serve(listener, router(admin)).await,
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                tracing::error!(%error, "HTTP ended; engines are served on");
            }
        });
    })?;
    Ok(address)
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/status", get(status))
        .route("/metrics", get(metrics_text))
        .route("/cache/memory/drop", post(drop_memory))
        .with_state(admin)
}

async fn health(State(admin): State<Admin>) -> Response {
    match admin.ask(AdminRequest::Health).await {
        Ok(true) => "ok".into_response(),
        Ok(false) => (StatusCode::SERVICE_UNAVAILABLE, "draining").into_response(),
        Err(Stuck) => stuck(),
    }
}

async fn status(State(admin): State<Admin>) -> Response {
    match admin.ask(AdminRequest::Snapshot).await {
        Ok(snapshot) => Json(snapshot.status).into_response(),
        Err(Stuck) => stuck(),
    }
}

async fn metrics_text(State(admin): State<Admin>) -> Response {
    let snapshot = match admin.ask(AdminRequest::Snapshot).await {
        Ok(snapshot) => snapshot,
        Err(Stuck) => return stuck(),
    };
    match metrics::render(snapshot) {
        Ok(text) => {
            let kind = prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn drop_memory(State(admin): State<Admin>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    // A browser names the page that sends: a web page must not empty the cache of its reader's machine.
    if headers.contains_key(header::ORIGIN) {
        return (StatusCode::FORBIDDEN, "requests from web pages are refused").into_response();
    }
    let wait = match query.as_deref() {
        None | Some("wait=0") => false,
        Some("wait=1") => true,
        Some(other) => {
            let text =
                format!("{other:?} is not known: give wait=1 to wait until all is written, or nothing");
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    let until = Instant::now() + WRITES_PATIENCE;
    loop {
        match admin.ask(|answer| AdminRequest::DropMemory { when_written: wait, answer }).await {
            Ok(Dropped::Pages(pages)) => {
                return Json(serde_json::json!({ "dropped_pages": pages })).into_response();
            }
            Ok(Dropped::Pending(_)) if Instant::now() < until => tokio::time::sleep(WRITES_PAUSE).await,
            Ok(Dropped::Pending(bytes)) => {
                let body = Json(serde_json::json!({ "dropped_pages": 0, "pending_bytes": bytes }));
                return (StatusCode::CONFLICT, body).into_response();
            }
            Err(Stuck) => return stuck(),
        }
    }
}

fn stuck() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the core thread does not answer").into_response()
}
