//! Ports of this machine that lead to ports of the command.

use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::remote::Remote;
use crate::failure::Failure;
use crate::output::note;

/// Most connections of a port at one time.
const MAX_CONNECTIONS: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port here, and the one in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForwardedPort {
    here: u16,
    there: u16,
}

/// Parses `PORT` or `HERE:THERE`.
///
/// # Errors
/// One sentence with the text and the remedy.
pub(super) fn parse_port(text: &str) -> Result<ForwardedPort, String> {
    let number = |text: &str| text.parse().ok().filter(|port| *port > 0);
    let (here, there) = text.split_once(':').unwrap_or((text, text));
    match (number(here), number(there)) {
        (Some(here), Some(there)) => Ok(ForwardedPort { here, there }),
        _ => Err(format!("{text:?} is no port; write PORT or HERE:THERE, as in 6006 or 8080:80")),
    }
}

/// Listens on the loopback addresses of the ports.
///
/// # Errors
/// [`Failure`] if a port is in use.
pub(super) async fn listen(ports: &[ForwardedPort]) -> Result<Vec<(TcpListener, ForwardedPort)>, Failure> {
    let mut listeners = Vec::new();
    for port in ports {
        let listener = TcpListener::bind(("127.0.0.1", port.here)).await.map_err(|error| {
            Failure::usage(format!("the port cannot be used here: {error}"))
                .field("--port", port.here)
                .remedy(format!("give another port of this machine, as in --port 8080:{}", port.there))
        })?;
        listeners.push((listener, *port));
    }
    Ok(listeners)
}

/// Forwards connections until this value goes.
pub(super) fn forward(listeners: Vec<(TcpListener, ForwardedPort)>, remote: &Remote) -> JoinSet<()> {
    let mut serving = JoinSet::new();
    for (listener, port) in listeners {
        let remote = remote.clone();
        serving.spawn(async move { serve(&listener, port, &remote).await });
    }
    serving
}

async fn serve(listener: &TcpListener, port: ForwardedPort, remote: &Remote) {
    let mut connections = JoinSet::new();
    let mut has_warned = false;
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                match accepted {
                    Ok((connection, _)) => {
                        let remote = remote.clone();
                        connections.spawn(async move { carry(connection, port, &remote).await });
                    }
                    // As when too many files are open.
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
            Some(ended) = connections.join_next() => {
                if let Ok(Err(failure)) = ended
                    && !has_warned
                {
                    has_warned = true;
                    note(&format!("warning: port {}: {failure}", port.here));
                }
            }
        }
    }
}

async fn carry(mut connection: TcpStream, port: ForwardedPort, remote: &Remote) -> Result<(), Failure> {
    let mut stream = remote.connect(port.there).await?;
    // An end of either side is none of this program's failures.
    _ = copy_bidirectional(&mut connection, &mut stream).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_or_pairs() {
        assert_eq!(parse_port("6006"), Ok(ForwardedPort { here: 6_006, there: 6_006 }));
        assert_eq!(parse_port("8080:80"), Ok(ForwardedPort { here: 8_080, there: 80 }));
        for text in ["", "0", "70000", "80:", ":80", "a", "1:2:3"] {
            assert!(parse_port(text).is_err_and(|error| error.contains("8080:80")), "{text}");
        }
    }
}
