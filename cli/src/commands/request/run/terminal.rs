//! This terminal as the command's.

use std::io::{IsTerminal as _, Read as _};

use crossterm::terminal;
use futures::SinkExt as _;
use kube::api::{AttachParams, TerminalSize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::remote::Remote;
use super::signals::Signals;
use crate::failure::Failure;

/// Runs `"$@"` with the terminal `$0`.
const WITH_TERM: &str = r#"TERM="$0"; export TERM; exec "$@""#;
const PART: usize = 4_096;
/// Parts of input that wait for a slow connection.
const WAITING_PARTS: usize = 16;

/// The terminal in raw mode, until this value goes.
struct Raw;

impl Raw {
    fn enter() -> Result<Self, Failure> {
        let entered = terminal::enable_raw_mode();
        entered.map(|()| Self).map_err(|error| Failure::unavailable(format!("this terminal cannot be used: {error}")))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        _ = terminal::disable_raw_mode();
    }
}

/// Runs the command with this terminal, or with standard input and output if they are none; returns its exit code.
pub(super) async fn connect(remote: &Remote, command: &[String], signals: &mut Signals) -> Result<i32, Failure> {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let parameters = AttachParams::default().stdin(true).stdout(true).stderr(!is_terminal).tty(is_terminal);
    let term = std::env::var("TERM").unwrap_or_else(|_| "xterm".to_owned());
    let mut words = if is_terminal { vec!["/bin/sh", "-c", WITH_TERM, &term] } else { Vec::new() };
    words.extend(command.iter().map(String::as_str));
    let mut exec = remote.exec(&words, parameters).await?;
    let raw = if is_terminal { Some(Raw::enter()?) } else { None };
    let sizes = exec.sizes.take();
    let resizing = tokio::spawn(async move {
        let (Some(mut sizes), Ok(mut changes)) = (sizes, signal(SignalKind::window_change())) else { return };
        loop {
            if let Ok((width, height)) = terminal::size()
                && sizes.send(TerminalSize { width, height }).await.is_err()
            {
                return;
            }
            changes.recv().await;
        }
    });
    let (mut input, stdin) = (read_stdin(), exec.stdin.take());
    let writing = tokio::spawn(async move {
        let Some(mut stdin) = stdin else { return };
        while let Some(part) = input.recv().await {
            if stdin.write_all(&part).await.is_err() {
                return;
            }
        }
        _ = stdin.shutdown().await;
    });
    let (stdout, stderr) = (exec.stdout.take(), exec.stderr.take());
    let done = signals
        .run_until(async {
            tokio::join!(copy(stdout, tokio::io::stdout()), copy(stderr, tokio::io::stderr()));
            exec.code().await
        })
        .await;
    resizing.abort();
    writing.abort();
    drop(raw);
    done
}

async fn copy(from: Option<impl tokio::io::AsyncRead + Unpin>, mut to: impl tokio::io::AsyncWrite + Unpin) {
    let Some(mut from) = from else { return };
    let mut part = vec![0; PART];
    while let Ok(read) = from.read(&mut part).await {
        if read == 0 || to.write_all(&part[..read]).await.is_err() {
            return;
        }
        _ = to.flush().await;
    }
}

/// Standard input, read by a thread of its own: one that waits in a read must not keep the process from ending.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel(WAITING_PARTS);
    std::thread::spawn(move || {
        let mut part = [0; PART];
        while let Ok(read) = std::io::stdin().lock().read(&mut part) {
            if read == 0 || send.blocking_send(part[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    receive
}
