//! Commands in a pod's container, over a WebSocket, as `kubectl exec` asks for them (KEP-4006).
//!
//! Each binary message begins with the number of its channel. The command's end is a Status on the channel of errors.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::lease_call::LeaseCall;
use crate::answers::Refusal;
use crate::lease_seats::MAX_COMMANDS;
use crate::podman::ExecOptions;
use crate::running::{PodPlan, container_name};

/// Versions of the protocol, best first. The later one can close a channel: without it standard input never ends.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const CLOSE: u8 = 255;
/// Largest message of a client.
const MAX_MESSAGE: usize = 1 << 20;
/// Most words of a command.
const MAX_WORDS: usize = 4_096;
/// Size of the parts in which output is sent.
const PART: usize = 32 << 10;
/// Parts of output that wait for a slow client.
const WAITING_PARTS: usize = 16;
/// Pause in the output after which it is given up once the command has ended: its children may hold the pipes.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Interval of pings: connections without traffic are closed by what is between.
const PING: Duration = Duration::from_secs(20);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// `GET …/pods/{name}/exec`.
pub(super) async fn get(call: LeaseCall, mut request: Request) -> Result<Response, Refusal> {
    let (_, entry) = call.pod()?;
    let host = call.host()?;
    let wrong = |message: String| Refusal::new(StatusCode::BAD_REQUEST, message);
    let asked = Asked::read(request.uri().query().unwrap_or_default()).map_err(wrong)?;
    let plan = PodPlan::of_stored(&entry.pod, &entry.resource)
        .map_err(|refusal| wrong(format!("{}: {}", refusal.field, refusal.reason)))?;
    let container = asked.container.as_deref().unwrap_or(&plan.main.name);
    let index = plan.containers().position(|other| other.name == container);
    let index = index.ok_or_else(|| wrong(format!("container {container} is not valid for pod {}", call.name)))?;
    let (protocol, accept) = handshake(request.headers()).map_err(wrong)?;
    let seat = call.site.seats.command(call.lease).ok_or_else(|| {
        let message = format!("{MAX_COMMANDS} commands run in pods of {} already; end one", call.lease);
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, message)
    })?;
    let mut command = host.podman.exec(&container_name(&entry, index), &asked.options);
    command.stdin(if asked.options.stdin { Stdio::piped() } else { Stdio::null() });
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let upgrade = hyper::upgrade::on(&mut request);
    // The seat is free when the command has ended, not when the client is gone.
    tokio::spawn(async move {
        let mut child = child;
        match upgrade.await {
            Ok(upgraded) => {
                let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE));
                let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
                serve(socket, &mut child).await;
            }
            Err(error) => tracing::debug!(%error, "a command's connection was not upgraded"),
        }
        // It reads the end of its input. One that does not heed that ends with its container.
        drop(child.stdin.take());
        _ = child.wait().await;
        drop(seat);
    });
    let headers = [
        (header::CONNECTION, "Upgrade".to_owned()),
        (header::UPGRADE, "websocket".to_owned()),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
        (header::SEC_WEBSOCKET_PROTOCOL, protocol.to_owned()),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response())
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    container: Option<String>,
    options: ExecOptions,
}

impl Asked {
    fn read(query: &str) -> Result<Self, String> {
        let mut asked = Self { container: None, options: ExecOptions::default() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let yes = value == "true" || value == "1";
            match name.as_ref() {
                "command" => asked.options.command.push(value.into_owned()),
                "container" => asked.container = Some(value.into_owned()).filter(|name| !name.is_empty()),
                "stdin" => asked.options.stdin = yes,
                "tty" => asked.options.tty = yes,
                _ => {}
            }
        }
        match asked.options.command.len() {
            0 => Err("command: it is missing".to_owned()),
            words if words > MAX_WORDS => Err(format!("command: it has {words} words; at most {MAX_WORDS} are run")),
            _ => Ok(asked),
        }
    }
}

/// The protocol that both sides know, and the answer to the client's key (RFC 6455, section 4.2.2).
fn handshake(headers: &HeaderMap) -> Result<(&'static str, String), String> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !text(header::UPGRADE).eq_ignore_ascii_case("websocket") {
        return Err(
            "this host runs commands over WebSockets, which kubectl 1.31 and later use; not over SPDY".to_owned()
        );
    }
    let offered = text(header::SEC_WEBSOCKET_PROTOCOL);
    let knows = |protocol: &&str| offered.split(',').any(|other| other.trim() == *protocol);
    let protocol = PROTOCOLS.into_iter().find(knows);
    let protocol =
        protocol.ok_or_else(|| format!("no protocol of {offered:?} is known; use {}", PROTOCOLS.join(" or ")))?;
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or("the WebSocket's key is missing")?;
    Ok((protocol, derive_accept_key(key.as_bytes())))
}

/// Carries input and output until the command or the client ends.
async fn serve(socket: Socket, child: &mut Child) {
    let (mut sink, stream) = socket.split();
    let (send, mut receive) = mpsc::channel::<Vec<u8>>(WAITING_PARTS);
    for (channel, output) in [
        (STDOUT, child.stdout.take().map(|output| Box::new(output) as Box<dyn AsyncRead + Send + Unpin>)),
        (STDERR, child.stderr.take().map(|output| Box::new(output) as _)),
    ] {
        if let Some(output) = output {
            tokio::spawn(read_output(channel, output, send.clone()));
        }
    }
    drop(send);
    let mut input = Box::pin(write_input(stream, child.stdin.take()));
    let (mut ping, mut status) = (tokio::time::interval(PING), None);
    let (mut client_is_there, mut output_is_open) = (true, true);
    let mut deadline = Box::pin(std::future::pending::<()>()) as futures::future::BoxFuture<'_, ()>;
    while client_is_there && (output_is_open || status.is_none()) {
        tokio::select! {
            // What is read is sent before the output is given up.
            biased;
            part = receive.recv(), if output_is_open => match part {
                Some(part) => {
                    client_is_there = sink.send(Message::Binary(part.into())).await.is_ok();
                    if status.is_some() {
                        deadline = Box::pin(tokio::time::sleep(LAST_OUTPUT));
                    }
                }
                None => output_is_open = false,
            },
            ended = child.wait(), if status.is_none() => {
                status = Some(ended);
                deadline = Box::pin(tokio::time::sleep(LAST_OUTPUT));
            }
            () = &mut input, if client_is_there => client_is_there = false,
            _ = ping.tick() => client_is_there = sink.send(Message::Ping(Vec::new().into())).await.is_ok(),
            () = &mut deadline => output_is_open = false,
        }
    }
    if let Some(Ok(status)) = status {
        _ = tell_end(&mut sink, status).await;
    }
}

async fn read_output(channel: u8, mut output: Box<dyn AsyncRead + Send + Unpin>, send: mpsc::Sender<Vec<u8>>) {
    loop {
        let mut part = vec![0; PART];
        part[0] = channel;
        match output.read(&mut part[1..]).await {
            Ok(read) if read > 0 => {
                part.truncate(read + 1);
                if send.send(part).await.is_err() {
                    return;
                }
            }
            Ok(_) | Err(_) => return,
        }
    }
}

/// Writes the client's input; returns when the client is gone.
async fn write_input(mut stream: SplitStream<Socket>, mut stdin: Option<ChildStdin>) {
    while let Some(Ok(message)) = stream.next().await {
        match message {
            Message::Binary(part) => match part.split_first() {
                Some((&STDIN, bytes)) => {
                    // A command that does not read its input any more still runs.
                    let failed = match &mut stdin {
                        Some(stdin) => stdin.write_all(bytes).await.is_err(),
                        None => false,
                    };
                    if failed {
                        stdin = None;
                    }
                }
                Some((&CLOSE, [STDIN])) => stdin = None,
                // Sizes of terminals, and channels that this host does not know.
                Some(_) | None => {}
            },
            Message::Close(_) => return,
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

async fn tell_end(
    sink: &mut SplitSink<Socket, Message>,
    status: ExitStatus,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let object = match status.code() {
        Some(0) => json!({ "metadata": {}, "status": "Success" }),
        code => {
            let code = code.unwrap_or(-1).to_string();
            json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": { "causes": [{ "reason": "ExitCode", "message": code }] },
            })
        }
    };
    let mut message = vec![ERROR];
    message.extend_from_slice(object.to_string().as_bytes());
    sink.send(Message::Binary(message.into())).await?;
    // kubectl takes a close without a code for a broken connection.
    sink.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))).await
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_from_the_query_and_needs_a_word() {
        let asked =
            Asked::read("command=sh&command=-c&command=a%20b&container=c&stdin=true&stdout=true&tty=1").unwrap();
        let command = ["sh", "-c", "a b"].map(str::to_owned).to_vec();
        let options = ExecOptions { command, stdin: true, tty: true };
        assert_eq!(asked, Asked { container: Some("c".to_owned()), options });
        assert!(Asked::read("stdin=true").unwrap_err().starts_with("command: it is missing"));
        assert!(Asked::read(&"command=x&".repeat(MAX_WORDS + 1)).is_err());
    }

    #[test]
    fn the_best_common_protocol_is_chosen() {
        let headers = |upgrade: &str, protocols: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::UPGRADE, upgrade.parse().unwrap());
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap());
            headers.insert(header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
            headers
        };
        // The example of RFC 6455.
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        let chosen = handshake(&headers("websocket", "v4.channel.k8s.io, v5.channel.k8s.io"));
        assert_eq!(chosen, Ok(("v5.channel.k8s.io", accept)));
        assert!(handshake(&headers("websocket", "v1.channel.k8s.io")).unwrap_err().contains("v5.channel.k8s.io"));
        assert!(handshake(&headers("SPDY/3.1", "")).unwrap_err().contains("WebSockets"));
    }
}
