//! The agent's local API: HTTP over a unix socket that only the agent's user can open.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use comity_runtime::SecretString;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::exit::Exit;
use crate::failure::Failure;

/// Longest answer that is read; a kubeconfig is a few KiB.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// The agent answers from memory.
const LIMIT: Duration = Duration::from_secs(10);

/// The kubeconfig of a lease.
///
/// # Errors
/// [`Failure`]: no agent there, or it has none for this lease.
pub(crate) async fn fetch_kubeconfig(socket: &Path, lease: &str) -> Result<SecretString, Failure> {
    // It becomes part of a path: nothing but a lease's id may.
    let number = lease
        .strip_prefix("lease-")
        .filter(|number| !number.is_empty() && number.len() <= 20 && number.bytes().all(|b| b.is_ascii_digit()));
    if number.is_none() {
        return Err(Failure::usage("this is no lease").field("LEASE", lease).remedy("name it as in lease-7"));
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
            format!("this agent has no kubeconfig for {lease}: {}", sentence(&text)),
        )
        .remedy("ask the agent of the lease's origin, once the lease is active: 'comity lease show' names it")),
        code => Err(Failure::refused("agent-refused", format!("the agent answered {code}: {}", sentence(&text)))),
    }
}

async fn get(socket: &Path, path: &str) -> Result<(http::StatusCode, Bytes), Failure> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::unavailable(format!("cannot ask the agent: {error}"))
            .field("--agent (COMITY_AGENT)", socket.display())
            .remedy("name the socket in the state directory of the origin's agent, as the user that runs it")
    };
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

/// The first line of an answer; JSON errors of the agent say it in `error` or `reason`.
fn sentence(text: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let said =
        json.as_ref().and_then(|json| json.get("reason").or_else(|| json.get("error"))).and_then(|said| said.as_str());
    said.unwrap_or_else(|| text.lines().next().unwrap_or_default()).chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;

    /// Answers one request on a socket, and gives the request's first line back.
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
    async fn the_kubeconfig_is_what_the_agent_says() {
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
    async fn bad_ids_and_no_agent_are_told_apart() {
        let nowhere = Path::new("/nonexistent/local.sock");
        for bad in ["../status", "lease-", "lease-1/x", "req-1", ""] {
            assert_eq!(fetch_kubeconfig(nowhere, bad).await.expect_err(bad).exit, Exit::Usage);
        }
        assert_eq!(fetch_kubeconfig(nowhere, "lease-1").await.expect_err("nowhere").exit, Exit::Unavailable);
    }
}
