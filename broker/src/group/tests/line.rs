//! TCP proxies between brokers that can drop all traffic, per direction, like a firewall.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;

/// Directions that pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    /// Calls.
    pub(crate) there: bool,
    /// Answers.
    pub(crate) back: bool,
}

pub(crate) const WHOLE: Open = Open { there: true, back: true };
pub(crate) const CUT: Open = Open { there: false, back: false };

/// The line from one broker to another.
pub(crate) struct Line {
    address: String,
    open: watch::Sender<Open>,
    task: JoinHandle<()>,
}

impl Line {
    async fn lay(to: SocketAddr) -> Self {
        let open = watch::Sender::new(WHOLE);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = open.subscribe();
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let state = state.clone();
                tokio::spawn(async move { carry(near, to, state).await.ok() });
            }
        });
        Self { address, open, task }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Lines between all brokers, by caller and called.
pub(crate) struct Lines(BTreeMap<(u64, u64), Line>);

impl Lines {
    /// Lays them; call it before the group is made, while nobody has called anybody.
    pub(crate) async fn lay(federation: &Federation, brokers: &[TestBroker]) -> Self {
        let mut lines = BTreeMap::new();
        for from in brokers {
            for to in brokers.iter().filter(|to| to.id != from.id) {
                let line = Line::lay(federation.addresses[&to.id]).await;
                from.group.inner.peers.lay_line(to.id, line.address.clone());
                lines.insert((from.id, to.id), line);
            }
        }
        Self(lines)
    }

    /// Sets the lines from and to one broker.
    pub(crate) fn set(&self, broker: u64, outgoing: Open, incoming: Open) {
        for ((from, to), line) in &self.0 {
            if *from == broker {
                line.open.send_replace(outgoing);
            } else if *to == broker {
                line.open.send_replace(incoming);
            }
        }
    }
}

async fn carry(near: TcpStream, to: SocketAddr, mut state: watch::Receiver<Open>) -> std::io::Result<()> {
    let _ = state.wait_for(|open| open.there).await;
    let far = TcpStream::connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    let there = pump(from_near, to_far, state.clone(), |open| open.there);
    tokio::try_join!(there, pump(from_far, to_near, state, |open| open.back)).map(drop)
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<Open>,
    passes: fn(&Open) -> bool,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await;
        let _ = state.wait_for(passes).await;
        match read? {
            0 => return to.shutdown().await,
            read => to.write_all(&buffer[..read]).await?,
        }
    }
}
