//! `comity context`: the federations that the caller has logged in to.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use comity_runtime::contexts::{CliContext, ContextError, Contexts};
use comity_runtime::{SpiffeId, TlsIdentity};
use serde::Serialize;

use crate::confirm::ConfirmArgs;
use crate::context_names::context_names;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Answer, Column, Sheet, columns, fields, note};
use crate::session::Session;
use crate::units::age;

const LIST_EXAMPLES: &str = "\
Examples:
  comity context list
  comity context list -o json | jq -r '.items[] | select(.current) | .name'
";
const USE_EXAMPLES: &str = "\
Examples:
  comity context use comity.example
  comity --context comity.example offers      for one command
  export COMITY_CONTEXT=comity.example        for one shell
";
const SHOW_EXAMPLES: &str = "\
Examples:
  comity context show                   the context that commands use
  comity context show comity.example
  cd $(comity context show -o json | jq -r .identity)
";
const ADD_CONTEXT_EXAMPLES: &str = "\
Examples:
  comity context add work --broker b1.example:7443,b2.example:7443 --identity alice/
  comity context add dev                with the variables that 'comity dev' prints

Copies key.pem, cert.pem and ca.pem. 'comity login' makes a context from a token, without files.
";
const REMOVE_CONTEXT_EXAMPLES: &str = "\
Examples:
  comity context remove work
  comity context remove work --yes

Deletes your key and certificate for that federation from this machine. It asks.
";

/// `comity context`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity context list\n  comity context use comity.example\n")]
pub enum ContextCommand {
    /// List your contexts
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Make a context the current one, which commands use
    #[command(after_help = USE_EXAMPLES)]
    Use(ContextNameArgs),
    /// Show one context [default: the one that commands use]
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ContextShowArgs),
    /// Save brokers and identity as a context
    #[command(after_help = ADD_CONTEXT_EXAMPLES)]
    Add(ContextAddArgs),
    /// Delete a context with its key
    #[command(after_help = REMOVE_CONTEXT_EXAMPLES)]
    Remove(ContextRemoveArgs),
}

/// `comity context use`.
#[derive(Debug, Args)]
pub struct ContextNameArgs {
    /// Context, as 'comity context list' shows it
    #[arg(add = context_names())]
    name: String,
}

/// `comity context show`.
#[derive(Debug, Args)]
pub struct ContextShowArgs {
    /// Context, as 'comity context list' shows it
    #[arg(add = context_names())]
    name: Option<String>,
}

/// `comity context add`.
#[derive(Debug, Args)]
pub struct ContextAddArgs {
    /// Name of the context
    name: String,
    /// Unix socket of your cluster's agent on this machine, for 'comity lease kubeconfig'
    #[arg(long, value_name = "SOCKET", env = "COMITY_AGENT")]
    agent: Option<PathBuf>,
}

/// `comity context remove`.
#[derive(Debug, Args)]
pub struct ContextRemoveArgs {
    /// Context, as 'comity context list' shows it
    #[arg(add = context_names())]
    name: String,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

impl ContextCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`]: there is no such context, or a file cannot be read or written.
    pub fn run(&self, session: &Session) -> Result<(), Failure> {
        let contexts = session.contexts()?;
        match self {
            Self::List => {
                let names = contexts.list().map_err(|error| context_failure(&error))?;
                let items = names.iter().map(|name| ContextView::read(contexts, name)).collect();
                session.print(&ContextList { items })
            }
            Self::Use(args) => {
                contexts.set_current(&args.name).map_err(|error| context_failure(&error))?;
                warn_of_variables();
                session.print(&ContextView::read(contexts, &args.name))
            }
            Self::Show(args) => {
                let name = match &args.name {
                    Some(name) => contexts.load(name).map_err(|error| context_failure(&error))?.name,
                    None => session.context()?.ok_or_else(no_current)?.name,
                };
                session.print(&ContextView::read(contexts, &name))
            }
            Self::Add(args) => args.run(session, contexts),
            Self::Remove(args) => {
                contexts.load(&args.name).map_err(|error| context_failure(&error))?;
                args.confirm.ask(&format!("This deletes the key of context {:?}.", args.name))?;
                contexts.remove(&args.name).map_err(|error| context_failure(&error))
            }
        }
    }
}

impl ContextAddArgs {
    fn run(&self, session: &Session, contexts: &Contexts) -> Result<(), Failure> {
        let missing = |flag: &str| Failure::usage(format!("{flag} is missing")).remedy("give --broker and --identity");
        let brokers = session.given_brokers()?.ok_or_else(|| missing("--broker (COMITY_BROKER)"))?;
        let directory = session.given_identity().ok_or_else(|| missing("--identity (COMITY_IDENTITY)"))?;
        let (pem, identity) = directory.load().map_err(|error| {
            Failure::configuration(error.to_string())
                .field("--identity (COMITY_IDENTITY)", directory.path().display())
                .remedy("give the directory with key.pem, cert.pem and ca.pem")
        })?;
        check_replaceable(contexts, &self.name, identity.id())?;
        let save = || {
            contexts.save(&self.name, &brokers, &pem)?;
            if let Some(socket) = &self.agent {
                contexts.set_agent(&self.name, socket)?;
            }
            if contexts.current()?.is_none() { contexts.set_current(&self.name) } else { Ok(()) }
        };
        save().map_err(|error| context_failure(&error))?;
        session.print(&ContextView::read(contexts, &self.name))
    }
}

/// Tells the caller of variables in the environment that win against the current context.
pub(super) fn warn_of_variables() {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let set: Vec<&str> = ["COMITY_BROKER", "COMITY_IDENTITY", "COMITY_CONTEXT"].into_iter().filter(is_set).collect();
    if !set.is_empty() {
        let (win, them) = if set.len() == 1 { ("wins", "it") } else { ("win", "them") };
        note(&format!("note: {} in the environment {win} against the current context; unset {them}", set.join(", ")));
    }
}

fn no_current() -> Failure {
    Failure::new(Exit::NotFound, "not-found", "no context is current")
        .remedy("run 'comity login' with a token from a maintainer, or 'comity context use NAME'")
}

/// A failed use of the caller's contexts.
pub(crate) fn context_failure(error: &ContextError) -> Failure {
    let reason = error.to_string();
    match error {
        ContextError::Name { .. } => Failure::usage(reason),
        ContextError::Unknown { .. } => Failure::new(Exit::NotFound, "not-found", reason),
        _ => Failure::configuration(reason).remedy("'comity context remove NAME' deletes a context that is damaged"),
    }
}

/// Refuses to replace a context of another user or federation.
pub(crate) fn check_replaceable(contexts: &Contexts, name: &str, id: &SpiffeId) -> Result<(), Failure> {
    let context = match contexts.load(name) {
        Ok(context) => context,
        Err(ContextError::Unknown { .. }) => return Ok(()),
        Err(error) => return Err(context_failure(&error)),
    };
    match context.identity.load() {
        Ok((_, identity)) if identity.id() != id => {
            Err(Failure::refused("wrong-state", format!("context {name:?} exists, of {}", identity.id()))
                .remedy("give another name, or remove it with 'comity context remove NAME'"))
        }
        _ => Ok(()),
    }
}

/// Milliseconds since 1970.
pub(super) fn unix_ms(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// One context.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContextView {
    name: String,
    current: bool,
    user: Option<String>,
    brokers: Vec<String>,
    /// Those of `brokers` that a broker listed after the context was made.
    learnt_brokers: Vec<String>,
    certificate_not_after_ms: Option<u64>,
    identity: Option<PathBuf>,
    agent: Option<PathBuf>,
    problem: Option<String>,
}

impl ContextView {
    /// Reads a context and its certificate. A damaged one is shown with its problem.
    pub(super) fn read(contexts: &Contexts, name: &str) -> Self {
        let current = contexts.current().is_ok_and(|current| current.as_deref() == Some(name));
        let mut view = Self {
            name: name.to_owned(),
            current,
            user: None,
            brokers: Vec::new(),
            learnt_brokers: Vec::new(),
            certificate_not_after_ms: None,
            identity: None,
            agent: None,
            problem: None,
        };
        match contexts.load(name).and_then(|context| Ok((context.identity.load()?.1, context))) {
            Ok((identity, context)) => view.fill(context, &identity),
            Err(error) => view.problem = Some(error.to_string()),
        }
        view
    }

    fn fill(&mut self, context: CliContext, identity: &TlsIdentity) {
        self.user = Some(identity.id().to_string());
        let brokers = context.known_brokers().lists();
        self.brokers = brokers.endpoints().addresses().to_vec();
        self.learnt_brokers = brokers.learnt().to_vec();
        self.certificate_not_after_ms = Some(unix_ms(identity.not_after()));
        self.identity = Some(context.identity.path().to_owned());
        self.agent = context.agent;
    }

    fn certificate(&self, now_ms: u64) -> String {
        match (self.certificate_not_after_ms, &self.problem) {
            (Some(end), _) if end < now_ms => format!("expired {}", age(end, now_ms)),
            (Some(end), _) => format!("ends {}", age(end, now_ms)),
            (None, problem) => problem.clone().unwrap_or_default(),
        }
    }
}

impl Answer for ContextView {
    fn table(&self, now_ms: u64) -> Sheet {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        fields(&[
            ("Context", format!("{}{}", self.name, if self.current { " (current)" } else { "" })),
            ("User", self.user.clone().unwrap_or_default()),
            ("Brokers", self.brokers.join(",")),
            ("Learnt brokers", self.learnt_brokers.join(",")),
            ("Certificate", self.certificate(now_ms)),
            ("Identity", path(&self.identity)),
            ("Agent", path(&self.agent)),
        ])
    }
}

/// The mark of the current context first.
const CONTEXT_COLUMNS: [Column; 5] = [
    Column::text(""),
    Column::text("context"),
    Column::text("user").rank(1),
    Column::text("certificate"),
    Column::text("brokers").rank(2),
];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContextList {
    items: Vec<ContextView>,
}

impl Answer for ContextList {
    fn table(&self, now_ms: u64) -> Sheet {
        let row = |context: &ContextView| {
            vec![
                if context.current { "*" } else { "" }.to_owned(),
                context.name.clone(),
                context.user.clone().unwrap_or_default(),
                context.certificate(now_ms),
                context.brokers.join(","),
            ]
        };
        let none =
            "no context; 'comity login' makes one from a token, which a maintainer makes with 'comity user add NAME'";
        columns(&CONTEXT_COLUMNS, self.items.iter().map(row).collect(), none)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use comity_runtime::{CertificateAuthority, IdentityPem, TrustDomain};

    use super::*;

    fn alice(life: Duration) -> IdentityPem {
        let domain: TrustDomain = "dev.test".parse().expect("valid");
        let issued = SystemTime::now();
        let authority = CertificateAuthority::create(domain.clone(), issued).expect("made");
        let id = SpiffeId::user(domain, "alice".parse().expect("valid"));
        authority.new_identity(&id, &[], life, issued).expect("issued")
    }

    #[test]
    fn the_list_marks_the_current_one_and_names_damage() {
        let home = tempfile::tempdir().expect("made");
        let contexts = Contexts::new(home.path());
        let brokers = "b1.test:7443,b2.test:7443".parse().expect("valid");
        for name in ["bad", "dev"] {
            contexts.save(name, &brokers, &alice(Duration::from_secs(90_000))).expect("saved");
        }
        contexts.set_current("dev").expect("set");
        std::fs::write(home.path().join("contexts/bad/cert.pem"), "").expect("written");
        let items = ["bad", "dev"].map(|name| ContextView::read(&contexts, name)).into();
        let list = ContextList { items };
        let text = list.table(crate::clock::now_ms()).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].trim_start().starts_with("bad") && !lines[1].contains("ends in"), "{text}");
        assert!(lines[2].starts_with('*') && lines[2].contains("spiffe://dev.test/user/alice"), "{text}");
        assert!(lines[2].contains("ends in 1d") && lines[2].ends_with("b1.test:7443,b2.test:7443"), "{text}");
        let json = serde_json::to_value(&list).expect("serialises");
        assert_eq!((&json["items"][0]["current"], &json["items"][1]["current"]), (&false.into(), &true.into()));
        assert!(json["items"][0]["problem"].as_str().is_some_and(|problem| !problem.is_empty()), "{json}");
    }

    #[test]
    fn learnt_brokers_are_shown_among_the_brokers_and_by_themselves() {
        let home = tempfile::tempdir().expect("made");
        let contexts = Contexts::new(home.path());
        let brokers = "b1.test:7443".parse().expect("valid");
        let context = contexts.save("dev", &brokers, &alice(Duration::from_secs(60))).expect("saved");
        let shown = || ContextView::read(&contexts, "dev");
        assert!(!shown().table(0).to_string().contains("Learnt"));
        let known = context.known_brokers();
        known.learn(&"b1.test:7443,b2.test:7443".parse().expect("valid"));
        contexts.set_learnt("dev", &known).expect("kept");
        let json = serde_json::to_value(shown()).expect("serialises");
        assert_eq!(json["brokers"], serde_json::json!(["b1.test:7443", "b2.test:7443"]));
        assert_eq!(json["learntBrokers"], serde_json::json!(["b2.test:7443"]));
        assert!(shown().table(0).to_string().contains("Learnt brokers:"));
    }

    #[test]
    fn a_context_of_somebody_else_is_not_replaced() {
        let home = tempfile::tempdir().expect("made");
        let contexts = Contexts::new(home.path());
        let (alice, bob) = (alice(Duration::from_secs(60)), "spiffe://dev.test/user/bob".parse().expect("valid"));
        check_replaceable(&contexts, "dev", &bob).expect("free");
        contexts.save("dev", &"b:1".parse().expect("valid"), &alice).expect("saved");
        assert!(check_replaceable(&contexts, "dev", &bob).expect_err("taken").reason.contains("user/alice"));
        check_replaceable(&contexts, "dev", &"spiffe://dev.test/user/alice".parse().expect("valid")).expect("own");
        assert_eq!(check_replaceable(&contexts, "../dev", &bob).expect_err("bad name").exit, Exit::Usage);
    }
}
