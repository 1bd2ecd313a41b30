//! Reads a process's admin port (metrics and probes, without authentication).

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The body of one page, by HTTP GET.
///
/// # Errors
/// When nobody answers, or the status is not 200.
pub(super) async fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    // HTTP/1.0: the response ends with the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    ensure!(head.split_whitespace().nth(1) == Some("200"), "{address}{path}: {head}");
    Ok(body.to_owned())
}
