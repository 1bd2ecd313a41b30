//! Client of the agent's local API: HTTP over a Unix socket that only the agent's user can open.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use comity_runtime::SecretString;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::exit::Exit;
use crate::failure::Failure;

/// Longest answer accepted; a kubeconfig is a few KiB.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// Limit of one call; the agent answers from memory.
const LIMIT: Duration = Duration::from_secs(10);

/// Gets the kubeconfig of a lease from the agent that listens on `socket`.
///
/// # Errors
/// [`Failure`]: no agent listens there, or it has no kubeconfig for this lease.
pub(crate) async fn fetch_kubeconfig(socket: &Path, lease: &str) -> Result<SecretString, Failure> {
    // It becomes part of a path, so accept nothing but a lease's id.
    let number = lease
        .strip_prefix("lease-")
        .filter(|number| !number.is_empty() && number.len() <= 20 && number.bytes().all(|b| b.is_ascii_digit()));
    if number.is_none() {
        return Err(Failure::usage("this is not a lease id").field("<LEASE>", lease).remedy("give it as in lease-7"));
    }
    let path = format!("/v1/leases/{lease}/kubeconfig");
    let (status, body) = tokio::time::timeout(LIMIT, get(socket, &path)).await.unwrap_or_else(|_| {
        Err(Failure::unavailable(format!("the agent did not answer within {} s", LIMIT.as_secs())))
    })?;
    let text = String::from_utf8_lossy(&body);
    match status.as_u16() {
        200 => Ok(SecretString::new(text.into_owned())),
        404 => Err(Failure::new(
            Exit::NotFound,
            "not-found",
            format!("this agent has no kubeconfig for {lease}: {}", reason_in(&text)),
        )
        .remedy("ask the agent of the lease's origin once the lease is active; 'comity lease show' names the origin")),
        code => Err(Failure::refused("agent-refused", format!("the agent answered {code}: {}", reason_in(&text)))),
    }
}

/// Fails unless an agent listens on `socket`.
///
/// # Errors
/// [`Failure`] with exit code 5.
pub(super) fn check(socket: &Path) -> Result<(), Failure> {
    let connected = std::os::unix::net::UnixStream::connect(socket);
    connected.map(drop).map_err(|error| unreachable(socket, &error))
}

fn unreachable(socket: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::unavailable(format!("cannot reach the agent: {error}"))
        .field("--agent (COMITY_AGENT)", socket.display())
        .remedy("give the socket in the state directory of the origin's agent, and run as the agent's user")
}

async fn get(socket: &Path, path: &str) -> Result<(http::StatusCode, Bytes), Failure> {
    let unreachable = |error: &dyn std::fmt::Display| unreachable(socket, error);
    let stream = UnixStream::connect(socket).await.map_err(|error| unreachable(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
    let driver = tokio::spawn(connection);
    let request = http::Request::get(path)
        .header(http::header::HOST, "agent")
        .body(Empty::<Bytes>::new())
        .map_err(|error| unreachable(&error))?;
    let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    let status = response.status();
    let body =
        Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|error| unreachable(&error))?;
    driver.abort();
    Ok((status, body.to_bytes()))
}

/// The reason in an answer: `reason` or `error` of a JSON object, else the first line.
fn reason_in(text: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let reason = json
        .as_ref()
        .and_then(|json| json.get("reason").or_else(|| json.get("error")))
        .and_then(|reason| reason.as_str());
    reason.unwrap_or_else(|| text.lines().next().unwrap_or_default()).chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;

    /// Answers one request on a socket; returns the result and the request's first line.
    async fn answered(answer: &'static str) -> (Result<SecretString, Failure>, String) {
        let dir = tempfile::tempdir().expect("made");
        let socket = dir.path().join("local.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut buffer = vec![0; 4_096];
            let read = stream.read(&mut buffer).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("written");
            String::from_utf8_lossy(&buffer[..read]).lines().next().unwrap_or_default().to_owned()
        });
        let result = fetch_kubeconfig(&socket, "lease-7").await;
        (result, server.await.expect("ended"))
    }

    #[tokio::test]
    async fn the_kubeconfig_is_the_agents_answer() {
        let (result, line) = answered("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nkind").await;
        assert_eq!(line, "GET /v1/leases/lease-7/kubeconfig HTTP/1.1");
        assert_eq!(result.expect("got").expose(), "kind");
        let (result, _) =
            answered("HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\n{\"reason\":\"is ended\"}").await;
        let failure = result.expect_err("404");
        assert_eq!(failure.exit, Exit::NotFound);
        assert!(failure.reason.contains("lease-7"), "{failure}");
    }

    #[tokio::test]
    async fn bad_ids_and_a_missing_agent_are_distinguished() {
        let nowhere = Path::new("/nonexistent/local.sock");
        for bad in ["../status", "lease-", "lease-1/x", "req-1", ""] {
            assert_eq!(fetch_kubeconfig(nowhere, bad).await.expect_err(bad).exit, Exit::Usage);
        }
        assert_eq!(fetch_kubeconfig(nowhere, "lease-1").await.expect_err("nowhere").exit, Exit::Unavailable);
    }
}
