//! The HTTP endpoint for counters, for Prometheus and similar tools.
//!
//! 1. A request may have at most [`MAX_REQUEST_BYTES`] and take at most [`PATIENCE`]. At most
//!    [`MAX_AT_ONCE`] are served at a time; others wait in the kernel's queue.
//! 2. No request changes anything.

use super::text::Report;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::warn;

const MAX_REQUEST_BYTES: usize = 8 << 10;
const MAX_AT_ONCE: usize = 4;
const PATIENCE: Duration = Duration::from_secs(5);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers `GET /metrics` on a listener until it is dropped.
pub async fn serve(report: Report, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(MAX_AT_ONCE));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("cannot accept a connection to the metrics endpoint: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let report = report.clone();
        tokio::spawn(async move {
            // A client that has disconnected needs no answer.
            let _ = tokio::time::timeout(PATIENCE, answer(report, stream)).await;
            drop(permit);
        });
    }
}

async fn answer(report: Report, mut stream: TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    let ended = |request: &[u8]| request.windows(4).any(|w| w == b"\r\n\r\n");
    while !ended(&request) && request.len() < MAX_REQUEST_BYTES {
        let mut part = [0; 1024];
        match stream.read(&mut part).await? {
            0 => break,
            n => request.extend(&part[..n]),
        }
    }
    let line = request.split(|&b| b == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&b| b == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|&b| b == b'?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        _ if !ended(&request) => ("400 Bad Request", "text/plain", "no request\n".into()),
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", OPEN_METRICS, report.open_metrics()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "text/plain", "try /metrics\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "try GET\n".into()),
    };
    let length = body.len();
    let body = if method == b"HEAD" { String::new() } else { body };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
