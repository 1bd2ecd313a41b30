//! `comity login`: exchanges a join token for a certificate, and keeps both as a context.

mod prompt;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::contexts::{CliContext, Contexts};
use comity_runtime::join_token::{JoinToken, JoinTokenError, PendingKey, TokenArgumentError};
use comity_runtime::{BrokerEndpoints, ClientTls, IdentityPem, KeyAndCsr, Roots, SecretString, SpiffeId, connect};
use serde::Serialize;

use super::context::{ContextView, check_replaceable, context_failure, unix_ms, warn_of_variables};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Answer, Sheet, fields, note};
use crate::session::{Session, call};
use crate::units::age;

const LOGIN_EXAMPLES: &str = "\
Examples:
  comity login                         asks for the token, and does not show it
  comity login alice.token             reads it from a file; - reads standard input
  echo TOKEN | comity login -          the line that 'comity user add' printed; your shell may keep it
  comity login --context work alice.token
  comity login --renew                 new key and certificate now; commands do it when it is time

Makes your key on this machine, gets a certificate for it, and saves both with the brokers' addresses
as a context. Its name is the federation's unless you give another. It becomes the current one: if
there was another, the command says how to go back.
The key is on disk before the token is used: if something fails after that, repeat the command.
";

const ASK_REMEDY: &str = "a maintainer of the federation makes a token with 'comity user add NAME'";
/// Code of a refused token.
const INVALID_TOKEN: &str = "invalid-token";
/// Attempts to log in while the brokers elect a leader, and the pause between them.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// `comity login`.
#[derive(Debug, Args)]
#[command(after_help = LOGIN_EXAMPLES)]
pub struct LoginArgs {
    /// Token from 'comity user add', a file with it, or - for standard input [default: ask]
    #[arg(value_name = "TOKEN|FILE|-", conflicts_with = "renew")]
    token: Option<SecretString>,
    /// Replace your key and certificate now
    #[arg(long)]
    renew: bool,
    /// Unix socket of your cluster's agent on this machine, for 'comity lease kubeconfig'
    #[arg(long, value_name = "SOCKET", env = "COMITY_AGENT")]
    agent: Option<PathBuf>,
}

impl LoginArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`]: the token is invalid, no broker accepts it, or the context cannot be saved.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        if self.renew {
            return renew(session).await;
        }
        let token = read_token(self.token.as_ref())?;
        token.user().map_err(|error| bad_token(&error))?;
        let contexts = session.contexts()?;
        let name = session.named_context().unwrap_or(token.id.trust_domain().as_str());
        // The token works once: find out before it is spent whether its certificate can be kept.
        check_replaceable(contexts, name, &token.id)?;
        let brokers = session.given_brokers()?.unwrap_or_else(|| token.brokers.clone());
        let directory = contexts.identity_of(name).map_err(|error| context_failure(&error))?;
        let pending =
            PendingKey::open(directory.path(), &token).map_err(|error| Failure::configuration(error.to_string()))?;
        let identity = join(&token, &brokers, &pending.fresh).await.inspect_err(|failure| {
            if failure.code == INVALID_TOKEN {
                pending.discard();
            }
        })?;
        let before = contexts.current().ok().flatten();
        let context = save(contexts, name, &brokers, &identity, self.agent.as_deref())
            .map_err(|failure| not_saved(failure, &token.id, &pending))?;
        pending.forget();
        note(&logged_in(&token.id, name, before.as_deref()));
        note("next: 'comity offers' lists the GPUs that clusters lend; 'comity context list' your contexts");
        warn_of_variables();
        session.print(&ContextView::read(contexts, &context.name))
    }
}

/// Says which context is current now, and how to return to the one that was.
fn logged_in(id: &SpiffeId, name: &str, before: Option<&str>) -> String {
    match before.filter(|before| *before != name) {
        Some(before) => format!(
            "logged in as {id}; context {name:?} is current, no longer {before:?}; 'comity context use {before}' goes back"
        ),
        None => format!("logged in as {id}; context {name:?} is current"),
    }
}

/// The token that the argument is or names, or that the caller enters.
fn read_token(argument: Option<&SecretString>) -> Result<JoinToken, Failure> {
    let Some(argument) = argument else {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage("no token is given, and standard input is not a terminal")
                .remedy(format!("give the token, a file with it, or - for standard input; {ASK_REMEDY}")));
        }
        let line = prompt::read_secret("Token: ")
            .map_err(|error| Failure::usage(format!("cannot read the token from the terminal: {error}")))?;
        // People paste the whole line `comity login TOKEN`.
        let token = line.expose().split_whitespace().last().unwrap_or_default();
        return token.parse().map_err(|error| bad_token(&error));
    };
    JoinToken::from_argument(argument.expose().trim()).map_err(|error| match error {
        TokenArgumentError::Token(error) => bad_token(&error),
        other => Failure::usage(other.to_string()).remedy(ASK_REMEDY),
    })
}

fn bad_token(error: &JoinTokenError) -> Failure {
    let failure = Failure::usage(error.to_string());
    match error {
        JoinTokenError::OtherSubject { found, .. } if found.as_cluster().is_some() => {
            failure.remedy("run 'comity-agent join' with it on a host of that cluster")
        }
        JoinTokenError::OtherSubject { .. } => failure.remedy("run 'comity-broker up --join' with it on the new host"),
        _ => failure.remedy(ASK_REMEDY),
    }
}

/// Gets the first certificate of a key.
pub(crate) async fn join(
    token: &JoinToken,
    brokers: &BrokerEndpoints,
    fresh: &KeyAndCsr,
) -> Result<IdentityPem, Failure> {
    let request = v1::JoinUserRequest {
        user: token.user().map_err(|error| bad_token(&error))?.to_string(),
        secret: token.secret.expose().to_vec(),
        csr_der: fresh.csr.as_bytes().to_vec(),
    };
    let tls = ClientTls::pinned(token.ca_sha256, token.id.trust_domain().clone());
    let mut client = FederationServiceClient::new(connect(brokers, &tls));
    let mut attempt = 1;
    // Repeating the same request is safe, also if the broker answered and the answer was lost.
    let joined = loop {
        match call(client.join_user(request.clone())).await {
            Ok(joined) => break joined,
            Err(failure) if failure.exit == Exit::Unavailable && attempt < ATTEMPTS => attempt += 1,
            Err(failure) => return Err(refused(failure, &token.id)),
        }
        tokio::time::sleep(PAUSE).await;
    };
    let pem = IdentityPem { key: fresh.key_pem.clone(), chain: joined.certificate_pem, ca: joined.ca_pem };
    Roots::from_pem_pinned(&pem.ca, token.id.trust_domain(), &token.ca_sha256)
        .map_err(|error| Failure::new(Exit::Permission, "certificate-refused", error.to_string()).remedy(ASK_REMEDY))?;
    Ok(pem)
}

/// A failed login; the general remedies assume that the caller has a certificate.
fn refused(failure: Failure, id: &SpiffeId) -> Failure {
    match failure.code.as_str() {
        "certificate-refused" => failure.remedy(format!(
            "the token is for the federation {}, and other servers run at its addresses; ask for a new token",
            id.trust_domain()
        )),
        INVALID_TOKEN => failure.remedy(ASK_REMEDY),
        "unavailable" => failure.remedy("check the network to the brokers; the token stays valid until it expires"),
        _ => failure,
    }
}

/// The certificate came and cannot be kept: the token is used, but not lost.
fn not_saved(failure: Failure, id: &SpiffeId, pending: &PendingKey) -> Failure {
    let reason = format!("the federation admitted {id}, but its certificate is not saved: {}", failure.reason);
    Failure::configuration(reason).remedy(format!(
        "free the disk, or make the directory writable, and repeat the command with the same token within a day: the \
         brokers issue the certificate again to the key in {}",
        pending.path().display()
    ))
}

fn save(
    contexts: &Contexts,
    name: &str,
    brokers: &BrokerEndpoints,
    identity: &IdentityPem,
    agent: Option<&Path>,
) -> Result<CliContext, Failure> {
    let save = || {
        let saved = contexts.save(name, brokers, identity)?;
        let context = agent.map_or(Ok(saved), |socket| contexts.set_agent(name, socket))?;
        contexts.set_current(name)?;
        Ok(context)
    };
    save().map_err(|error| context_failure(&error))
}

async fn renew(session: &Session) -> Result<(), Failure> {
    let directory = session.identity_dir()?;
    let renewed = session.renew_certificate(&directory).await?;
    session.print(&Renewed {
        user: renewed.id().to_string(),
        certificate_not_after_ms: unix_ms(renewed.not_after()),
        identity: directory.path().to_owned(),
    })
}

/// The answer of `--renew`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Renewed {
    user: String,
    certificate_not_after_ms: u64,
    identity: PathBuf,
}

impl Answer for Renewed {
    fn table(&self, now_ms: u64) -> Sheet {
        fields(&[
            ("User", self.user.clone()),
            ("Certificate ends", age(self.certificate_not_after_ms, now_ms)),
            ("Identity", self.identity.display().to_string()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use comity_runtime::SeededEntropy;

    use super::*;

    fn token(id: &str) -> String {
        JoinToken::generate(
            "127.0.0.1:7443".parse().expect("valid"),
            "ab".repeat(32).parse().expect("valid"),
            id.parse().expect("valid"),
            &SeededEntropy::new(1),
        )
        .encode()
        .expose()
        .clone()
    }

    fn failure(argument: &str) -> Failure {
        let read = read_token(Some(&SecretString::new(argument.to_owned())));
        read.and_then(|token| token.user().map(drop).map_err(|error| bad_token(&error))).expect_err("no user's token")
    }

    #[test]
    fn a_bad_token_is_never_shown() {
        let token = token("spiffe://dev.test/user/alice");
        let file = tempfile::NamedTempFile::new().expect("made");
        std::fs::write(file.path(), &token[..80]).expect("written");
        for given in [token[..80].to_owned(), token[20..].to_owned(), file.path().display().to_string()] {
            let failure = failure(&given);
            let shown = format!("{}{}{failure:?}", failure.text(), failure.json());
            assert!(failure.exit == Exit::Usage && shown.contains("comity user add"), "{shown}");
            assert!(!shown.contains(&token[20..60]), "{shown}");
        }
        let parsed = crate::Args::try_parse_from(["comity", "login", &token]).expect("parsed");
        assert!(!format!("{parsed:?}").contains(&token[20..60]));
    }

    #[test]
    fn a_token_of_another_kind_names_its_command() {
        for (id, command) in [
            ("spiffe://dev.test/cluster/ncc-main", "comity-agent join"),
            ("spiffe://dev.test/broker/2", "comity-broker up --join"),
        ] {
            assert!(failure(&token(id)).remedy.contains(command), "{id}");
        }
    }

    #[test]
    fn an_empty_token_is_a_missing_one() {
        for empty in ["", " \n"] {
            let failure = failure(empty);
            assert!(failure.reason.contains("no join token is given"), "{failure:?}");
            assert!(failure.exit == Exit::Usage && failure.remedy.contains("comity user add"), "{failure:?}");
        }
    }

    #[test]
    fn a_certificate_that_cannot_be_saved_names_the_key_that_gets_it_again() {
        let dir = tempfile::tempdir().expect("made");
        let token: JoinToken = token("spiffe://dev.test/user/alice").parse().expect("a token");
        let pending = PendingKey::open(dir.path(), &token).expect("written");
        let failure = not_saved(Failure::configuration("no space left"), &token.id, &pending);
        assert!(failure.reason.contains("admitted spiffe://dev.test/user/alice"), "{failure:?}");
        assert!(failure.remedy.contains(&pending.path().display().to_string()), "{failure:?}");
    }

    #[test]
    fn a_login_says_which_context_it_leaves() {
        let id = "spiffe://dev.test/user/alice".parse().expect("valid");
        let said = logged_in(&id, "dev.test", Some("work"));
        assert!(said.contains(r#"context "dev.test" is current, no longer "work""#), "{said}");
        assert!(said.ends_with("'comity context use work' goes back"), "{said}");
        for before in [None, Some("dev.test")] {
            assert!(logged_in(&id, "dev.test", before).ends_with(r#"context "dev.test" is current"#));
        }
    }

    #[test]
    fn a_login_that_cannot_be_saved_leaves_the_old_context_whole() {
        let home = tempfile::tempdir().expect("made");
        let contexts = Contexts::new(home.path());
        let domain: comity_runtime::TrustDomain = "dev.test".parse().expect("valid");
        let now = std::time::SystemTime::now();
        let identity = || {
            let authority = comity_runtime::CertificateAuthority::create(domain.clone(), now).expect("made");
            let id = SpiffeId::user(domain.clone(), "alice".parse().expect("valid"));
            authority.new_identity(&id, &[], Duration::from_secs(600), now).expect("issued")
        };
        let [before, after] = ["b1.test:7443", "b2.test:7443"].map(|text| text.parse().expect("valid"));
        let old = identity();
        save(&contexts, "dev", &before, &old, None).expect("saved");
        let whole = |contexts: &Contexts| {
            let context = contexts.load("dev").expect("a context");
            let (pem, _) = context.identity.load().expect("whole");
            context.brokers == before && pem.chain == old.chain && pem.ca == old.ca
        };
        std::fs::create_dir_all(home.path().join("contexts/dev/cert.next.pem/in the way")).expect("made");
        save(&contexts, "dev", &after, &identity(), None).expect_err("in the way");
        assert!(whole(&contexts));
        assert_eq!(contexts.current().expect("read").as_deref(), Some("dev"));
    }

    #[test]
    fn a_missing_file_is_named() {
        assert!(failure("alice.token").reason.contains("alice.token"));
    }
}
