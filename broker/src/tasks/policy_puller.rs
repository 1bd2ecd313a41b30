//! Pulls the policy from its source: commits whose owners signed them, of a Git repository or an artifact, or the documents of
//! a directory or an artifact.
//!
//! Whatever fails leaves the bundle in force, and is recorded with its reason: in the state, so that every broker shows
//! it, in the log and in the metrics.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comity_core::command::{PullOutcome, RecordPull};
use comity_core::provenance::PolicySource;
use comity_core::{Command, ReplyBody, State, Timestamp};
use comity_policy::{Bundle, BundleSource, SourceFile, read_directory};
use comity_provenance::limits::MAX_TAKEN_NAMES;
use comity_provenance::{InForce, ObjectId, PolicyFolder, Refused, StoreError, Verdict, judge, policy_at, taken_after};

use crate::context::Context;
use crate::group::{Consistency, Unavailable};
use crate::policy_source::{
    ArtifactDigest, Branch, PULL_DEADLINE, PullError, Pulled, PulledBranch, PulledDocuments, Repository, pull,
};
use crate::tasks::RETRY_INTERVAL;

/// How soon a change of the source is noticed.
const SOURCE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Pulls that find nothing new are recorded this often, so that the log does not grow with each.
const PULL_RECORD_INTERVAL: Duration = Duration::from_secs(600);
/// Code of a commit whose signatures suffice, and which the state refuses.
const REFUSED: &str = "refused";
const SET_REMEDY: &str = "set the source again with `comity policy source set`";

/// What a pull found.
#[derive(Clone, Copy, Default)]
struct Seen {
    head: Option<ObjectId>,
    artifact: Option<ArtifactDigest>,
}

/// What a pull starts from.
#[derive(Clone)]
struct Basis {
    source: PolicySource,
    commit: Option<String>,
    began: Option<String>,
    taken_names: BTreeSet<String>,
    bundle: Arc<Bundle>,
}

impl Basis {
    fn of(state: &State) -> Option<Self> {
        let provenance = &state.provenance;
        Some(Self {
            source: provenance.source.clone()?,
            commit: provenance.commit.clone(),
            began: provenance.began.clone(),
            taken_names: provenance.taken_names.clone(),
            bundle: Arc::clone(&state.policy.as_ref()?.bundle),
        })
    }

    /// Whether a pull by another basis could find something else.
    fn asks_the_same(&self, other: &Self) -> bool {
        let (one, other_source) = (&self.source, &other.source);
        one.repository == other_source.repository
            && one.branch == other_source.branch
            && one.folder == other_source.folder
            && one.set_at == other_source.set_at
            && self.commit == other.commit
            && self.bundle.hash == other.bundle.hash
    }

    fn record(&self, seen: Seen, outcome: PullOutcome) -> RecordPull {
        RecordPull {
            repository: self.source.repository.clone(),
            branch: self.source.branch.clone(),
            folder: self.source.folder.clone(),
            judged_by: self.commit.clone(),
            bundle_hash: self.bundle.hash.clone(),
            head: seen.head.map(|head| head.to_string()),
            artifact: seen.artifact.map(|artifact| artifact.to_string()),
            outcome,
        }
    }

    /// Whether the state knows all of this already.
    fn knows(&self, record: &RecordPull, now: Timestamp) -> bool {
        let is_recent = |at: Timestamp| Duration::from_millis(now.since(at).0) < PULL_RECORD_INTERVAL;
        let same_outcome = match (&record.outcome, &self.source.failure) {
            (PullOutcome::InForce, None) => true,
            (PullOutcome::Failed { code, commit, reason, .. }, Some(held)) => {
                held.code == *code && held.commit == *commit && held.reason == *reason
            }
            _ => false,
        };
        let same_content = record.head == self.source.head && record.artifact == self.source.artifact;
        same_outcome && same_content && self.source.pulled_at.is_some_and(is_recent)
    }
}

/// Pulls while this broker leads and a source is set.
pub(super) async fn run(context: &Context) {
    let mut behind = None;
    loop {
        let basis = match context.group.read(Consistency::Stale, Basis::of).await {
            Ok(Some(basis)) => basis,
            Ok(None) => {
                behind = None;
                context.clock.sleep(SOURCE_CHECK_INTERVAL).await;
                continue;
            }
            Err(_) => return,
        };
        // A pull may take a minute. What another source has does not wait for it.
        let pulled = tokio::select! {
            pulled = pull_source(context, &basis) => pulled,
            changed = until_changed(context, &basis) => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        match take_up(context, &basis, pulled).await {
            Ok(is_behind) => {
                behind = is_behind.then(|| behind.take().unwrap_or_else(|| context.metrics.policy_behind()));
            }
            Err(error) => {
                tracing::warn!(%error, "the pull of the policy is not recorded yet");
                context.clock.sleep(RETRY_INTERVAL).await;
                continue;
            }
        }
        if wait(context, &basis).await.is_err() {
            return;
        }
    }
}

/// Waits for the interval, or until the source or the bundle in force is another one.
async fn wait(context: &Context, pulled: &Basis) -> Result<(), Unavailable> {
    tokio::select! {
        () = context.clock.sleep(Duration::from_millis(pulled.source.interval.0)) => Ok(()),
        changed = until_changed(context, pulled) => changed,
    }
}

/// Waits until the source or the bundle in force is another one.
async fn until_changed(context: &Context, pulled: &Basis) -> Result<(), Unavailable> {
    loop {
        context.clock.sleep(SOURCE_CHECK_INTERVAL).await;
        let now = context.group.read(Consistency::Stale, Basis::of).await?;
        if !now.is_some_and(|now| now.asks_the_same(pulled)) {
            return Ok(());
        }
    }
}

/// Judges what was pulled, and records it. Returns whether the head is not in force.
async fn take_up(context: &Context, basis: &Basis, pulled: Result<Pulled, PullError>) -> Result<bool, Unavailable> {
    let record = find(context, basis, pulled).await;
    let (outcome, is_behind) = (code_of(&record.outcome), matches!(record.outcome, PullOutcome::Failed { .. }));
    if basis.knows(&record, context.now()) {
        context.metrics.policy_pulled(outcome);
        return Ok(is_behind);
    }
    let applied = crate::tasks::propose(context, Command::RecordPull(record.clone())).await?;
    match applied.reply {
        Ok(body) => {
            report(&record, body == ReplyBody::Policy { changed: true });
            context.metrics.policy_pulled(outcome);
            Ok(is_behind)
        }
        Err(refusal) if matches!(record.outcome, PullOutcome::Accepted { .. }) => {
            let head = record.head.clone().unwrap_or_default();
            let what = match &record.artifact {
                _ if !head.is_empty() => format!("commit {head}"),
                Some(artifact) => format!("the policy of artifact {artifact}"),
                None => "the policy of the directory".to_owned(),
            };
            let failed = PullOutcome::Failed {
                code: REFUSED.to_owned(),
                commit: head,
                reason: format!("{what} is refused: {}", refusal.reason),
                remedy: refusal.remedy,
            };
            let record = RecordPull { outcome: failed, ..record };
            report(&record, false);
            context.metrics.policy_pulled(REFUSED);
            crate::tasks::propose(context, Command::RecordPull(record)).await?;
            Ok(true)
        }
        // Another source or bundle: the next pull is about that.
        Err(refusal) => {
            tracing::info!(reason = %refusal.reason, "the pull is void");
            Ok(is_behind)
        }
    }
}

fn code_of(outcome: &PullOutcome) -> &str {
    match outcome {
        PullOutcome::InForce => "in-force",
        PullOutcome::Accepted { .. } => "accepted",
        PullOutcome::Failed { code, .. } => code,
    }
}

fn report(record: &RecordPull, changed: bool) {
    let RecordPull { repository, branch, head, artifact, outcome, .. } = record;
    let (head, artifact) = (head.as_deref().unwrap_or_default(), artifact.as_deref().unwrap_or_default());
    match outcome {
        PullOutcome::InForce => tracing::debug!(repository, branch, head, artifact, "the pulled policy is in force"),
        PullOutcome::Accepted { .. } => tracing::info!(repository, branch, head, artifact, changed, "policy pulled"),
        PullOutcome::Failed { code, commit, reason, remedy } => {
            tracing::warn!(
                repository,
                branch,
                head,
                artifact,
                code,
                commit,
                reason,
                remedy,
                "the policy in force stays"
            );
        }
    }
}

async fn find(context: &Context, basis: &Basis, pulled: Result<Pulled, PullError>) -> RecordPull {
    let failed = |seen: Seen, error: PullError| {
        let PullError { code, reason, remedy, artifact } = error;
        let seen = Seen { artifact: seen.artifact.or(artifact), ..seen };
        let commit = seen.head.map_or_else(String::new, |head| head.to_string());
        let (code, remedy) = (code.to_owned(), remedy.to_owned());
        basis.record(seen, PullOutcome::Failed { code, commit, reason, remedy })
    };
    let pulled = match pulled {
        Ok(pulled) => pulled,
        Err(error) => return failed(Seen::default(), error),
    };
    let seen = match &pulled {
        Pulled::Branch(branch) => Seen { head: Some(branch.head), artifact: branch.artifact },
        Pulled::Directory(_) => Seen::default(),
        Pulled::Documents(documents) => Seen { head: None, artifact: Some(documents.artifact) },
    };
    let (judged, now_ms) = (basis.clone(), context.now().0);
    let verdict = tokio::task::spawn_blocking(move || match pulled {
        Pulled::Branch(branch) => judge_head(&judged, &branch, now_ms),
        Pulled::Directory(path) => read_path(&judged, &path),
        Pulled::Documents(documents) => read_artifact(&judged, &documents),
    });
    match verdict.await {
        Ok(Ok(outcome)) => basis.record(seen, outcome),
        Ok(Err(error)) => failed(seen, error),
        Err(_) => failed(seen, PullError::new("judging the policy failed", "look at the leader's log")),
    }
}

/// The documents of a directory without Git.
fn read_path(basis: &Basis, path: &Path) -> Result<PullOutcome, PullError> {
    let path = path.join(&basis.source.folder);
    let read = || {
        read_directory(&path)
            .map_err(|error| PullError::saying("the documents", &error, "name the directory that has them"))
    };
    read_documents(basis, &path.display(), || {
        let files = read()?;
        // Two equal reads show that no link was replaced in between.
        if read()? != files {
            return Err(PullError::new("the directory changed while it was read", "it is read again at the next pull"));
        }
        Ok(files)
    })
}

/// The documents of an artifact.
fn read_artifact(basis: &Basis, documents: &PulledDocuments) -> Result<PullOutcome, PullError> {
    let (what, folder) = (format!("artifact {}", documents.artifact), &basis.source.folder);
    read_documents(basis, &what, || {
        let files = documents.files(folder)?;
        if files.is_empty() {
            let reason = format!("{what} has no *.yaml or *.yml file in its folder `{folder}`");
            let remedy = "push the folder with the policy, or set the source again with another `--folder`";
            return Err(PullError::new(reason, remedy));
        }
        Ok(files)
    })
}

/// Documents that nobody signs.
fn read_documents(
    basis: &Basis,
    what: &dyn std::fmt::Display,
    read: impl FnOnce() -> Result<Vec<SourceFile>, PullError>,
) -> Result<PullOutcome, PullError> {
    let refused = |code: &str, reason: String, remedy: &str| {
        Ok(PullOutcome::Failed { code: code.to_owned(), commit: String::new(), reason, remedy: remedy.to_owned() })
    };
    if basis.bundle.federation.spec.signatures.required {
        let reason = format!("{what} has no commits, and the policy in force requires signed ones");
        let remedy = "set the source to the Git repository with the commits, or `comity policy push` them";
        return refused("unsigned", reason, remedy);
    }
    let files = read()?;
    let source = BundleSource::of_files(files);
    match Bundle::compile(&source) {
        Ok(bundle) if bundle.hash == basis.bundle.hash => Ok(PullOutcome::InForce),
        Ok(bundle) => {
            let taken_names = taken_after(&basis.taken_names, &basis.bundle, &bundle);
            if taken_names.len() > MAX_TAKEN_NAMES {
                let reason = format!("the names of institutions that left are more than {MAX_TAKEN_NAMES}");
                return refused(
                    "taken-names",
                    reason,
                    "admit institutions that left again, or give their names to others",
                );
            }
            let signed_by = BTreeSet::new();
            Ok(PullOutcome::Accepted { source: bundle.source().clone(), signed_by, taken_names })
        }
        Err(problems) => {
            let first = problems.first().map_or_else(String::new, |first| match first.file.as_str() {
                "" => format!(", first: {}", first.message),
                file => format!(", first {file}:{}: {}", first.line, first.message),
            });
            let reason = format!("the policy in {what} does not compile, problems: {}{first}", problems.len());
            refused("invalid", reason, "run `comity policy check FOLDER` with these files, and mend all problems")
        }
    }
}

async fn pull_source(context: &Context, basis: &Basis) -> Result<Pulled, PullError> {
    let source = &basis.source;
    let repository =
        Repository::parse(&source.repository).map_err(|invalid| PullError::new(invalid.why, SET_REMEDY))?;
    let branch = Branch::parse(&source.branch).map_err(|invalid| PullError::new(invalid.why, SET_REMEDY))?;
    let known = [&basis.commit, &source.head].into_iter().flatten();
    let held: Vec<ObjectId> = known.filter_map(|id| id.parse().ok()).collect();
    pull(&context.policy_access, &repository, &branch, &held, PULL_DEADLINE).await
}

fn judge_head(basis: &Basis, pulled: &PulledBranch, now_ms: u64) -> Result<PullOutcome, PullError> {
    let folder: PolicyFolder =
        basis.source.folder.parse().map_err(|error| PullError::saying("the folder", &error, SET_REMEDY))?;
    let read = |id: &Option<String>, what: &str| match id {
        Some(id) => id.parse().map(Some).map_err(|error| PullError::saying(what, &error, SET_REMEDY)),
        None => Ok(None),
    };
    let commit = read(&basis.commit, "the commit in force")?;
    let began = read(&basis.began, "the first commit of the history in force")?;
    let in_force = InForce { bundle: &basis.bundle, commit, began, taken_names: &basis.taken_names };
    let unreadable = |error: StoreError| {
        PullError::saying("the commits cannot be judged", &error, "push the whole history, and run `git fsck`")
    };
    let refused = |refused: Refused| PullOutcome::Failed {
        code: refused.reason.code().to_owned(),
        commit: refused.commit.to_string(),
        reason: refused.to_string(),
        remedy: refused.remedy(),
    };
    Ok(match judge(&pulled.objects, &folder, &in_force, pulled.head, now_ms).map_err(unreadable)? {
        // The commit came into force from one folder; the source may have been set to another one since.
        Verdict::Unchanged if basis.source.pulled_at.is_none() || basis.source.failure.is_some() => {
            match policy_at(&pulled.objects, &folder, pulled.head).map_err(unreadable)? {
                Ok(bundle) if bundle.hash == basis.bundle.hash => PullOutcome::InForce,
                Ok(_) => PullOutcome::Failed {
                    code: "other-folder".to_owned(),
                    commit: pulled.head.to_string(),
                    reason: format!(
                        "folder `{folder}` of commit {} has other documents than are in force",
                        pulled.head
                    ),
                    remedy: "set the source again with the folder whose documents are in force".to_owned(),
                },
                Err(why) => refused(why),
            }
        }
        Verdict::Unchanged => PullOutcome::InForce,
        Verdict::Accepted(accepted) => {
            let mut source = accepted.bundle.source().clone();
            source.commit = Some(accepted.commit.to_string());
            let signed_by = accepted.signers.iter().map(ToString::to_string).collect();
            PullOutcome::Accepted { source, signed_by, taken_names: accepted.taken_names }
        }
        Verdict::Refused(why) => refused(why),
    })
}
