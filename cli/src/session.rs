//! Settings that all commands share: broker addresses, the caller's identity, the output format.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_proto::v1;
use comity_runtime::telemetry::CALLS_TARGET;
use comity_runtime::{
    BrokerChannel, BrokerEndpoints, ClientTls, Clock as _, Entropy as _, IdentityDir, SystemClock, SystemEntropy,
    connect,
};
use tonic::{Response, Status};

use crate::clock::now_ms;
use crate::failure::Failure;
use crate::global_args::GlobalArgs;
use crate::output::{Answer, Format, write_stdout};

/// Limit of one call, connecting included; a change of the leader takes far less.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// Items per page of a list: the API's maximum.
const PAGE_SIZE: u32 = 500;
/// Pages that one list command reads: 100,000 items.
const MAX_PAGES: usize = 200;

/// Broker addresses, identity and output settings of one run.
#[derive(Debug)]
pub struct Session {
    brokers: Option<String>,
    identity: Option<PathBuf>,
    /// Output format.
    pub format: Format,
    stale: bool,
}

impl Session {
    /// A session from the command line and the environment. Opens no file and no connection.
    #[must_use]
    pub fn new(args: &GlobalArgs) -> Self {
        Self {
            brokers: args.broker.clone(),
            identity: args.identity.clone().or_else(default_identity),
            format: args.output,
            stale: args.stale,
        }
    }

    /// A session with a federation in this process.
    #[must_use]
    pub fn for_federation(brokers: &BrokerEndpoints, identity: &Path, format: Format) -> Self {
        Self { brokers: Some(brokers.to_string()), identity: Some(identity.to_owned()), format, stale: false }
    }

    /// Whether the caller named a broker.
    #[must_use]
    pub fn names_broker(&self) -> bool {
        self.brokers.as_deref().is_some_and(|text| !text.trim().is_empty())
    }

    /// The brokers' addresses.
    ///
    /// # Errors
    /// [`Failure`] if none is given or one is malformed.
    pub fn endpoints(&self) -> Result<BrokerEndpoints, Failure> {
        let text = self.brokers.as_deref().unwrap_or_default();
        if text.trim().is_empty() {
            return Err(Failure::configuration("no broker address is given")
                .remedy("give --broker HOST:PORT or set COMITY_BROKER; 'comity dev' starts a local federation"));
        }
        text.parse().map_err(|error: comity_runtime::tls::EndpointError| {
            Failure::configuration(error.to_string()).field("--broker (COMITY_BROKER)", text)
        })
    }

    /// TLS with the caller's certificate.
    ///
    /// # Errors
    /// [`Failure`] if the identity is missing, unreadable or expired.
    pub fn tls(&self) -> Result<ClientTls, Failure> {
        let path = self.identity.clone().ok_or_else(|| {
            Failure::configuration("no identity directory is given, and neither HOME nor XDG_CONFIG_HOME is set")
                .remedy("give --identity DIR or set COMITY_IDENTITY")
        })?;
        let dir = IdentityDir::new(&path);
        if !dir.exists() {
            return Err(Failure::configuration("the identity directory does not hold key.pem, cert.pem and ca.pem")
                .field("--identity (COMITY_IDENTITY)", path.display())
                .remedy("ask a maintainer of the federation for a certificate, and give its directory"));
        }
        let (source, roots) = dir.open().map_err(|error| {
            Failure::configuration(error.to_string())
                .field("--identity (COMITY_IDENTITY)", path.display())
                .remedy("restore the three matching files, or ask a maintainer for a new certificate")
        })?;
        if source.current().not_after() < SystemClock::new().now() {
            return Err(Failure::configuration(format!("the certificate of {} has expired", source.current().id()))
                .field("--identity (COMITY_IDENTITY)", path.display())
                .remedy("ask a maintainer of the federation for a new certificate"));
        }
        tracing::debug!(target: CALLS_TARGET, caller = %source.current().id(), identity = %path.display());
        Ok(ClientTls::new(roots, source.subscribe()))
    }

    /// A channel to whichever broker answers; it connects at the first call.
    ///
    /// # Errors
    /// [`Failure`] if the addresses or the identity cannot be used.
    pub fn channel(&self) -> Result<BrokerChannel, Failure> {
        Ok(connect(&self.endpoints()?, &self.tls()?))
    }

    /// The `v1::Consistency` of reads: stale with `--stale`, else linearizable.
    #[must_use]
    pub fn consistency(&self) -> i32 {
        let consistency = if self.stale { v1::Consistency::Stale } else { v1::Consistency::Linearizable };
        consistency.into()
    }

    /// Prints the only answer of a command.
    ///
    /// # Errors
    /// [`Failure`] if standard output cannot be written.
    pub fn print(&self, answer: &impl Answer) -> Result<(), Failure> {
        write_stdout(&self.format.render(answer, now_ms())?)
    }

    /// Prints one answer of a command that prints several.
    ///
    /// # Errors
    /// [`Failure`] if standard output cannot be written.
    pub fn print_event(&self, answer: &impl Answer) -> Result<(), Failure> {
        write_stdout(&self.format.render_event(answer, now_ms())?)
    }
}

/// Awaits one call for at most `CALL_LIMIT`.
///
/// # Errors
/// [`Failure`]: the broker refused, or none answered in time.
pub async fn call<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Failure> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Failure::unavailable(format!("no broker answered within {} s", CALL_LIMIT.as_secs()))
            .remedy("try again; if it persists, run 'comity raft status'")),
    }
}

/// Reads all pages of a list, one `page` call each; returns the items and the revision of the last page.
///
/// # Errors
/// [`Failure`] of the first call that fails, or if the list has more than `MAX_PAGES` pages.
pub async fn all_pages<T, F>(mut page: impl FnMut(v1::PageRequest) -> F) -> Result<(Vec<T>, u64), Failure>
where
    F: Future<Output = Result<(Vec<T>, Option<v1::PageInfo>), Failure>>,
{
    let (mut items, mut token) = (Vec::new(), String::new());
    for _ in 0..MAX_PAGES {
        let (more, info) = page(v1::PageRequest { size: PAGE_SIZE, token }).await?;
        items.extend(more);
        let info = info.unwrap_or_default();
        if info.next_token.is_empty() {
            return Ok((items, info.revision));
        }
        token = info.next_token;
    }
    Err(Failure::refused("too-much", format!("the list has more than {MAX_PAGES} pages of {PAGE_SIZE}"))
        .remedy("narrow the list, for example with --tenant or --cluster"))
}

/// The idempotency key of one command: the given one, or a random one.
#[must_use]
pub fn idempotency_key(given: Option<&str>) -> String {
    given.map_or_else(|| format!("cli-{}", SystemEntropy.unique_hex()), str::to_owned)
}

fn default_identity() -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = config.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(config.join("comity").join("identity"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_page_is_followed_and_endless_lists_are_cut() {
        let pages = |request: v1::PageRequest| async move {
            let number: u32 = request.token.parse().unwrap_or(0);
            let next_token = if number < 3 { (number + 1).to_string() } else { String::new() };
            Ok((vec![number], Some(v1::PageInfo { next_token, revision: 7 })))
        };
        assert_eq!(all_pages(pages).await, Ok((vec![0, 1, 2, 3], 7)));
        let endless = |_| async { Ok((vec![0], Some(v1::PageInfo { next_token: "on".to_owned(), revision: 1 }))) };
        assert_eq!(all_pages(endless).await.expect_err("endless").code, "too-much");
    }

    #[test]
    fn keys_are_random_unless_given() {
        assert_eq!(idempotency_key(Some("mine")), "mine");
        assert_ne!(idempotency_key(None), idempotency_key(None));
        assert!(idempotency_key(None).len() <= 128);
    }
}
