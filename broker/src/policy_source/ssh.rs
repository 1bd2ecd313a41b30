//! Git over SSH: one connection for a pull, with the server's `git-upload-pack`. A server whose key is not known gets
//! nothing, and no agent, settings or keys of the broker's user count.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use comity_runtime::Secret;
use comity_runtime::atomic_file;
use comity_runtime::private_files;
use russh::client::{self, Handle, Msg};
use russh::keys::PublicKeyOrCertificate;
use russh::keys::known_hosts::known_host_keys_path;
use russh::keys::{Algorithm, PrivateKey, PrivateKeyWithHashAlg, PublicKey, decode_secret_key};
use russh::{Channel, ChannelMsg, Preferred};

use crate::policy_source::access::PULL_DEADLINE;
use crate::policy_source::address_text::host_name;
use crate::policy_source::packet_lines::message_length;
use crate::policy_source::pull_error::{PullError, REACH};

/// Bytes of a private key's file.
const MAX_KEY_BYTES: u64 = 64 << 10;
/// Bytes of a file with the keys of servers.
const MAX_KNOWN_HOSTS_BYTES: u64 = 1 << 20;
/// Bytes that a server may say on standard error.
const MAX_SAID_BYTES: usize = 4 << 10;
const KEY_REMEDY: &str = "give each broker --policy-ssh-key FILE: a private key without passphrase, Ed25519 or ECDSA, \
                          that may read the repository";
const KNOWN_HOSTS_REMEDY: &str = "give each broker --policy-known-hosts FILE with the server's key; compare what \
                                  `ssh-keyscan -t ed25519,ecdsa HOST` prints with what the server's operator publishes";
const ADMITS: &str = "register the public key of --policy-ssh-key at the server, to read the repository";
const ANSWERS: &str = "check the path, and whether the server lets this key run git-upload-pack";

/// A server, and the keys of both sides.
pub(super) struct SshHost {
    pub(super) user: String,
    pub(super) host: String,
    pub(super) port: u16,
    key: PrivateKey,
    /// The keys by which the server is known.
    known: Vec<PublicKey>,
}

impl SshHost {
    /// Reads the files of this broker.
    pub(super) fn with_files(
        user: &str,
        host: &str,
        port: u16,
        key: Option<&Path>,
        known_hosts: Option<&Path>,
    ) -> Result<Self, PullError> {
        let host = host_name(host);
        let no_file = |remedy| PullError::new("the policy's repository is read over SSH", remedy);
        let key = read_key(key.ok_or_else(|| no_file(KEY_REMEDY))?)?;
        let known_hosts = known_hosts.ok_or_else(|| no_file(KNOWN_HOSTS_REMEDY))?;
        let unreadable = |error: &dyn std::fmt::Display| {
            PullError::saying("cannot read --policy-known-hosts", error, KNOWN_HOSTS_REMEDY)
        };
        let text = atomic_file::read_bounded(known_hosts, MAX_KNOWN_HOSTS_BYTES).map_err(|error| unreadable(&error))?;
        // The library takes a marker for a host, and would trust a revoked key.
        if text.split(|byte| *byte == b'\n').any(|line| line.trim_ascii_start().starts_with(b"@")) {
            let line = "it has a line with @revoked or @cert-authority; list the trusted keys alone";
            return Err(unreadable(&line));
        }
        let known = known_host_keys_path(host, port, known_hosts).map_err(|error| unreadable(&error))?;
        // RSA is not built in.
        let known: Vec<PublicKey> =
            known.into_iter().map(|(_, key)| key).filter(|key| !key.algorithm().is_rsa()).collect();
        if known.is_empty() {
            let reason = format!("--policy-known-hosts has no Ed25519 or ECDSA key of {host}, port {port}");
            return Err(PullError::new(reason, KNOWN_HOSTS_REMEDY));
        }
        Ok(Self { user: user.to_owned(), host: host.to_owned(), port, key, known })
    }

    /// Runs `git-upload-pack` for a repository. Ends with the session.
    pub(super) async fn upload_pack(self, path: &str) -> Result<SshSession, PullError> {
        let Self { user, host, port, key, known } = self;
        let reach =
            |error: &dyn std::fmt::Display| PullError::saying(&format!("cannot reach {host}:{port}"), error, REACH);
        // The best first, whatever the order of the file.
        let is_known = |it: &&Algorithm| known.iter().any(|key| key.algorithm() == **it);
        let algorithms = Preferred::DEFAULT.key.iter().filter(is_known).cloned().collect();
        let config = client::Config {
            // The library's task outlives a call that is dropped while keys are exchanged.
            inactivity_timeout: Some(PULL_DEADLINE),
            preferred: Preferred { key: Cow::Owned(algorithms), ..Preferred::default() },
            ..client::Config::default()
        };
        let mut connection = client::connect(Arc::new(config), (host.as_str(), port), KnownServer { known })
            .await
            .map_err(|error| match error {
                russh::Error::UnknownKey | russh::Error::NoCommonAlgo { kind: russh::AlgorithmKind::Key, .. } => {
                    let reason = format!("the key of {host}:{port} is not in --policy-known-hosts");
                    PullError::new(reason, KNOWN_HOSTS_REMEDY)
                }
                error => reach(&error),
            })?;
        let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
        let admitted = connection.authenticate_publickey(&user, key).await.map_err(|error| reach(&error))?;
        if !admitted.success() {
            let reason = format!("{host}:{port} does not admit {user} with the key of --policy-ssh-key");
            return Err(PullError::new(reason, ADMITS));
        }
        let channel = connection.channel_open_session().await.map_err(|error| reach(&error))?;
        // A server that refuses the variable speaks version 0, which is noticed.
        channel.set_env(false, "GIT_PROTOCOL", "version=2").await.map_err(|error| reach(&error))?;
        channel.exec(false, format!("git-upload-pack '{path}'")).await.map_err(|error| reach(&error))?;
        Ok(SshSession { _connection: connection, channel, unread: Vec::new(), said: Vec::new(), host })
    }
}

fn read_key(file: &Path) -> Result<PrivateKey, PullError> {
    let failed = |error: &dyn std::fmt::Display| PullError::saying("cannot read --policy-ssh-key", error, KEY_REMEDY);
    private_files::check(file).map_err(|error| failed(&error))?;
    let bytes = atomic_file::read_bounded(file, MAX_KEY_BYTES).map_err(|error| failed(&error))?;
    let text = Secret::new(String::from_utf8(bytes).map_err(|_| failed(&"it is not text"))?);
    // What the library says of a key could repeat a part of it.
    let key = decode_secret_key(text.expose(), None).map_err(|_| failed(&"it is no private key without passphrase"))?;
    if key.algorithm().is_rsa() { Err(failed(&"it is an RSA key")) } else { Ok(key) }
}

/// Accepts a server by its key.
struct KnownServer {
    known: Vec<PublicKey>,
}

impl client::Handler for KnownServer {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = shown else { return Ok(false) };
        // A comment is no part of the key.
        Ok(self.known.iter().any(|known| known.key_data() == key.key_data()))
    }
}

/// A conversation with `git-upload-pack`.
pub(super) struct SshSession {
    _connection: Handle<KnownServer>,
    channel: Channel<Msg>,
    unread: Vec<u8>,
    /// What the server said on standard error.
    said: Vec<u8>,
    host: String,
}

impl SshSession {
    /// Sends a request.
    pub(super) async fn send(&self, request: Vec<u8>) -> Result<(), PullError> {
        let failed = |error| PullError::saying(&format!("cannot send to {}", self.host), &error, REACH);
        self.channel.data_bytes(request).await.map_err(failed)
    }

    /// The next message, of at most `limit` bytes: all packets up to the one that ends it, or up to the server's end.
    pub(super) async fn message(&mut self, limit: usize) -> Result<Vec<u8>, PullError> {
        let mut looked_at = 0;
        loop {
            if let Some(length) = message_length(&self.unread, &mut looked_at) {
                let rest = self.unread.split_off(length);
                return Ok(std::mem::replace(&mut self.unread, rest));
            }
            if self.unread.len() > limit {
                return Err(PullError::too_long(&self.host, limit));
            }
            match self.channel.wait().await {
                Some(ChannelMsg::Data { data }) => self.unread.extend_from_slice(&data),
                Some(ChannelMsg::ExtendedData { data, .. }) => {
                    let room = MAX_SAID_BYTES.saturating_sub(self.said.len());
                    self.said.extend_from_slice(&data[..data.len().min(room)]);
                }
                Some(ChannelMsg::Close) | None => return self.end(),
                Some(_) => {}
            }
        }
    }

    /// The server closed the channel. Returns the bytes that were not read yet, or an error.
    fn end(&mut self) -> Result<Vec<u8>, PullError> {
        if self.unread.is_empty() {
            let said = String::from_utf8_lossy(&self.said);
            return Err(PullError::saying(&format!("{} ends the call", self.host), &said, ANSWERS));
        }
        Ok(std::mem::take(&mut self.unread))
    }
}
