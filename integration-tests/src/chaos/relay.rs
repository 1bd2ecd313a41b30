//! A TCP relay between an agent and the brokers that can be cut, as by a firewall that drops all packets.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Bytes on their way in one direction of one connection.
const BUFFER: usize = 16 << 10;

/// One listener per broker. While cut, it passes neither bytes nor the end of a connection; they arrive after the
/// repair, as if retransmitted. Dropping it stops it.
pub(super) struct Line {
    addresses: Vec<String>,
    cut: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
}

impl Line {
    /// Opens a relay to brokers, "host:port" each.
    ///
    /// # Errors
    /// When no port is free.
    pub(super) async fn lay(brokers: &[String]) -> Result<Self> {
        let cut = watch::Sender::new(false);
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        for broker in brokers {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for a line")?;
            addresses.push(listener.local_addr()?.to_string());
            listeners.push(tokio::spawn(serve(listener, broker.clone(), cut.subscribe())));
        }
        Ok(Self { addresses, cut, listeners })
    }

    /// Addresses of the brokers for the agent.
    pub(super) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Cuts the connection.
    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Restores the connection.
    pub(super) fn restore(&self) {
        self.cut.send_replace(false);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.listeners.iter().for_each(JoinHandle::abort);
    }
}

async fn serve(listener: TcpListener, broker: String, cut: watch::Receiver<bool>) {
    while let Ok((near, _)) = listener.accept().await {
        let (broker, cut) = (broker.clone(), cut.clone());
        // The agent handles broken connections.
        tokio::spawn(async move { carry(near, &broker, cut).await.ok() });
    }
}

async fn carry(near: TcpStream, broker: &str, mut cut: watch::Receiver<bool>) -> std::io::Result<()> {
    whole(&mut cut).await;
    let far = TcpStream::connect(broker).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    tokio::try_join!(pump(from_near, to_far, cut.clone()), pump(from_far, to_near, cut)).map(drop)
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut cut: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await;
        whole(&mut cut).await;
        match read? {
            0 => return to.shutdown().await,
            read => to.write_all(&buffer[..read]).await?,
        }
    }
}

/// Waits until the line is not cut; a line that is gone is not.
async fn whole(cut: &mut watch::Receiver<bool>) {
    cut.wait_for(|cut| !*cut).await.ok();
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn nothing_passes_while_it_is_cut_and_all_of_it_afterwards() {
        let broker = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let line = Line::lay(&[broker.local_addr().unwrap().to_string()]).await.unwrap();
        let mut agent = TcpStream::connect(&line.addresses()[0]).await.unwrap();
        let (mut far, _) = broker.accept().await.unwrap();
        agent.write_all(b"one").await.unwrap();
        let mut got = [0; 3];
        far.read_exact(&mut got).await.unwrap();
        line.cut();
        agent.write_all(b"two").await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(100), far.read_exact(&mut got)).await.is_err());
        line.restore();
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"two");
        drop(agent);
        assert_eq!(far.read(&mut got).await.unwrap(), 0);
    }
}
