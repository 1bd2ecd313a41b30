//! Settings that all commands share: broker addresses, the caller's identity, the output format.
//!
//! A flag wins against the environment, and both against the context. `--context` wins against the environment.

mod learnt_brokers;
mod renewal;

use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use comity_proto::v1;
use comity_runtime::contexts::{CliContext, Contexts};
use comity_runtime::telemetry::CALLS_TARGET;
use comity_runtime::{
    BrokerChannel, BrokerEndpoints, ClientTls, Clock as _, Entropy as _, IdentityDir, IdentitySource, KnownBrokers,
    Roots, SystemClock, SystemEntropy, TlsIdentity, connect,
};
use tonic::{Response, Status};

use crate::clock::now_ms;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::global_args::GlobalArgs;
use crate::output::{Answer, Format, Page, TableWidth, note, write_stdout};

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
    contexts: Option<Contexts>,
    choice: ContextChoice,
    /// Output format.
    pub format: Format,
    tables: TableWidth,
    stale: bool,
    /// The identity that this run presented, if a context holds it.
    presented: OnceLock<PresentedIdentity>,
    /// The brokers that this run knows, if a context names them.
    known: OnceLock<ContextBrokers>,
    /// Passed once this run looked who may read the private key.
    key_checked: Once,
}

/// The context that gives what neither a flag nor the environment gives.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ContextChoice {
    Named(String),
    Current,
}

/// An identity of a context.
#[derive(Debug)]
struct PresentedIdentity {
    directory: IdentityDir,
    identity: TlsIdentity,
}

/// The brokers of a context.
#[derive(Debug)]
struct ContextBrokers {
    context: String,
    brokers: KnownBrokers,
}

impl Session {
    /// A session from the command line and the environment. Opens no file and no connection.
    #[must_use]
    pub fn new(args: &GlobalArgs) -> Self {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        Self {
            brokers: given(&args.broker),
            identity: args.identity.clone().filter(|path| !path.as_os_str().is_empty()),
            contexts: Contexts::of_caller(),
            choice: given(&args.context).map_or(ContextChoice::Current, ContextChoice::Named),
            format: args.output,
            tables: if args.wide { TableWidth::Wide } else { TableWidth::Fit },
            stale: args.stale,
            presented: OnceLock::new(),
            known: OnceLock::new(),
            key_checked: Once::new(),
        }
    }

    /// A session with a federation in this process.
    #[must_use]
    pub fn for_federation(brokers: &BrokerEndpoints, identity: &Path, format: Format) -> Self {
        Self {
            brokers: Some(brokers.to_string()),
            identity: Some(identity.to_owned()),
            contexts: None,
            choice: ContextChoice::Current,
            format,
            tables: TableWidth::Fit,
            stale: false,
            presented: OnceLock::new(),
            known: OnceLock::new(),
            key_checked: Once::new(),
        }
    }

    /// Whether the caller named a broker, or a context does.
    ///
    /// # Errors
    /// [`Failure`] if the context cannot be read.
    pub fn names_broker(&self) -> Result<bool, Failure> {
        Ok(self.brokers.is_some() || self.context()?.is_some())
    }

    /// The contexts of the caller.
    ///
    /// # Errors
    /// [`Failure`] if it is unknown where they are.
    pub fn contexts(&self) -> Result<&Contexts, Failure> {
        self.contexts.as_ref().ok_or_else(|| {
            Failure::configuration("contexts have no place: neither HOME nor XDG_CONFIG_HOME is set")
                .remedy("set one of them, or give --broker and --identity")
        })
    }

    /// The context of this run: `--context`, else the current one; `None` if there is neither.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read.
    pub fn context(&self) -> Result<Option<CliContext>, Failure> {
        let loaded = match &self.choice {
            ContextChoice::Named(name) => self.contexts()?.load(name).map(Some),
            ContextChoice::Current => match &self.contexts {
                None => Ok(None),
                Some(contexts) => match contexts.current() {
                    Ok(name) => name.map(|name| contexts.load(&name)).transpose(),
                    Err(error) => Err(error),
                },
            },
        };
        loaded.map_err(|error| {
            Failure::configuration(error.to_string())
                .remedy("choose one with --context NAME or 'comity context use NAME'")
        })
    }

    /// The name in `--context` (COMITY_CONTEXT), if given.
    #[must_use]
    pub fn named_context(&self) -> Option<&str> {
        match &self.choice {
            ContextChoice::Named(name) => Some(name),
            ContextChoice::Current => None,
        }
    }

    /// The addresses in `--broker` (COMITY_BROKER), if given.
    ///
    /// # Errors
    /// [`Failure`] if one is malformed.
    pub fn given_brokers(&self) -> Result<Option<BrokerEndpoints>, Failure> {
        let parse = |text: &String| {
            text.parse().map_err(|error: comity_runtime::tls::EndpointError| {
                Failure::configuration(error.to_string()).field("--broker (COMITY_BROKER)", text)
            })
        };
        self.brokers.as_ref().map(parse).transpose()
    }

    /// The directory in `--identity` (COMITY_IDENTITY), if given.
    #[must_use]
    pub fn given_identity(&self) -> Option<IdentityDir> {
        self.identity.as_ref().map(IdentityDir::new)
    }

    /// The brokers' addresses.
    ///
    /// # Errors
    /// [`Failure`] if none is given or one is malformed.
    pub fn endpoints(&self) -> Result<BrokerEndpoints, Failure> {
        Ok(self.known_brokers()?.endpoints())
    }

    /// The given brokers, or those of the context with those that it has learnt.
    fn known_brokers(&self) -> Result<KnownBrokers, Failure> {
        if let Some(given) = self.given_brokers()? {
            return Ok((&given).into());
        }
        let context = self.context()?.ok_or_else(|| {
            Failure::configuration("no broker address is given, and no context is current").remedy(
                "run 'comity login' with a token from a maintainer, choose a context with 'comity context use NAME', or \
                 give --broker HOST:PORT (COMITY_BROKER); 'comity dev' starts a local federation",
            )
        })?;
        let known = || ContextBrokers { brokers: context.known_brokers(), context: context.name };
        Ok(self.known.get_or_init(known).brokers.clone())
    }

    /// The directory of the caller's identity.
    ///
    /// # Errors
    /// [`Failure`] if none is given.
    pub fn identity_dir(&self) -> Result<IdentityDir, Failure> {
        if let Some(given) = self.given_identity() {
            return Ok(given);
        }
        self.context()?.map(|context| context.identity).ok_or_else(|| {
            Failure::configuration("no identity is given, and no context is current").remedy(
                "run 'comity login' with a token from a maintainer, choose a context with 'comity context use NAME', or \
                 give --identity DIR (COMITY_IDENTITY)",
            )
        })
    }

    /// End of the caller's certificate, in milliseconds since 1970.
    ///
    /// # Errors
    /// Like [`tls`](Self::tls).
    pub fn certificate_not_after_ms(&self) -> Result<u64, Failure> {
        let since = self.caller()?.not_after().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// TLS with the caller's certificate.
    ///
    /// # Errors
    /// [`Failure`] if the identity is missing, unreadable or expired.
    pub fn tls(&self) -> Result<ClientTls, Failure> {
        let directory = self.identity_dir()?;
        let (source, roots) = open_identity(&directory)?;
        self.key_checked.call_once(|| {
            if let Some(warning) = warn_of_shared_key(&directory) {
                note(&warning);
            }
        });
        tracing::debug!(target: CALLS_TARGET, caller = %source.current().id(), identity = %directory.path().display());
        if self.identity.is_none() {
            // A second call opens the same identity.
            let _ = self.presented.set(PresentedIdentity { directory, identity: source.current() });
        }
        Ok(ClientTls::new(roots, source.subscribe()))
    }

    /// The caller's identity.
    ///
    /// # Errors
    /// Like [`tls`](Self::tls).
    pub fn caller(&self) -> Result<TlsIdentity, Failure> {
        Ok(open_identity(&self.identity_dir()?)?.0.current())
    }

    /// A channel to whichever broker answers; it connects at the first call.
    ///
    /// # Errors
    /// [`Failure`] if the addresses or the identity cannot be used.
    pub fn channel(&self) -> Result<BrokerChannel, Failure> {
        Ok(connect(&self.known_brokers()?, &self.tls()?))
    }

    /// The `v1::Consistency` of reads: stale with `--stale`, else linearizable.
    #[must_use]
    pub fn consistency(&self) -> i32 {
        let consistency = if self.stale { v1::Consistency::Stale } else { v1::Consistency::Linearizable };
        consistency.into()
    }

    /// Standard output, with the terminal's present width.
    #[must_use]
    pub fn page(&self) -> Page {
        Page::stdout(self.tables)
    }

    /// Prints the only answer of a command.
    ///
    /// # Errors
    /// [`Failure`] if standard output cannot be written.
    pub fn print(&self, answer: &impl Answer) -> Result<(), Failure> {
        write_stdout(&self.format.render(answer, now_ms(), self.page())?)
    }

    /// Prints one answer of a command that prints several.
    ///
    /// # Errors
    /// [`Failure`] if standard output cannot be written.
    pub fn print_event(&self, answer: &impl Answer) -> Result<(), Failure> {
        write_stdout(&self.format.render_event(answer, now_ms(), self.page())?)
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

/// A warning if other users of this machine may read the private key.
fn warn_of_shared_key(directory: &IdentityDir) -> Option<String> {
    let key = directory.key_file();
    let mode = std::fs::metadata(&key).ok()?.permissions().mode();
    let key = key.display();
    (mode & 0o077 != 0).then(|| format!("warning: other users of this machine may use {key}: run 'chmod 600 {key}'"))
}

/// Opens the identity in a directory.
fn open_identity(directory: &IdentityDir) -> Result<(IdentitySource, Roots), Failure> {
    const FIELD: &str = "--identity (COMITY_IDENTITY)";
    const NEW: &str = "log in with a new token, which a maintainer makes with 'comity user add NAME'";
    let path = directory.path().display();
    if !directory.exists() {
        return Err(Failure::configuration("the identity directory does not hold key.pem, cert.pem and ca.pem")
            .field(FIELD, path)
            .remedy("run 'comity login' with a token from a maintainer, or give the directory of your certificate"));
    }
    // Another command may be replacing key and certificate: the second try reads both new ones.
    let (source, roots) = directory.open().or_else(|_| directory.open()).map_err(|error| {
        let remedy = format!("restore the three matching files, or {NEW}");
        Failure::configuration(error.to_string()).field(FIELD, path).remedy(remedy)
    })?;
    let identity = source.current();
    if identity.not_after() < SystemClock::new().now() {
        let reason = format!("the certificate of {} has expired", identity.id());
        return Err(Failure::new(Exit::Permission, "unauthenticated", reason)
            .field(FIELD, directory.path().display())
            .remedy(NEW));
    }
    Ok((source, roots))
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
    fn a_key_that_others_may_read_is_warned_of() {
        let dir = tempfile::tempdir().expect("a folder");
        let directory = IdentityDir::new(dir.path());
        assert_eq!(warn_of_shared_key(&directory), None, "another message says that it is missing");
        std::fs::write(directory.key_file(), "").expect("written");
        for (mode, warned) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            std::fs::set_permissions(directory.key_file(), std::fs::Permissions::from_mode(mode)).expect("set");
            let warning = warn_of_shared_key(&directory);
            assert_eq!(warning.is_some_and(|text| text.contains("chmod 600")), warned, "{mode:o}");
        }
    }

    #[test]
    fn keys_are_random_unless_given() {
        assert_eq!(idempotency_key(Some("mine")), "mine");
        assert_ne!(idempotency_key(None), idempotency_key(None));
        assert!(idempotency_key(None).len() <= 128);
    }
}
