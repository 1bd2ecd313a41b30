//! What `comity cluster evict` and `comity institution suspend` share: the treatment of leases, the question, the answer.

use clap::{Args, ValueEnum};
use comity_proto::v1;
use serde::Serialize;

use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::output::{Answer, Sheet};
use crate::session::idempotency_key;
use crate::units::counted;

/// Options of both commands.
#[derive(Debug, Args)]
pub(crate) struct RevocationArgs {
    /// What becomes of the leases in force, lent and borrowed
    #[arg(long, value_enum, default_value_t = Treatment::Stop, value_name = "HOW")]
    leases: Treatment,
    /// Say what would end, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// What becomes of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Treatment {
    /// End them at once: right if somebody else may hold a key
    Stop,
    /// Reclaim them with the donor's notice
    Drain,
    /// Let their terms run out, without renewal
    Finish,
}

impl From<Treatment> for v1::LeaseTreatment {
    fn from(treatment: Treatment) -> Self {
        match treatment {
            Treatment::Stop => Self::Stop,
            Treatment::Drain => Self::Drain,
            Treatment::Finish => Self::Finish,
        }
    }
}

impl Treatment {
    /// What the leases do: "3 leases stop at once".
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Stop => ("stops at once", "stop at once"),
            Self::Drain => ("ends after the donor's notice", "end after the donor's notice"),
            Self::Finish => ("runs until its term ends", "run until their terms end"),
        }
    }
}

/// What is revoked, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Revocation {
    /// A cluster's membership.
    Eviction(String),
    /// The part of an institution.
    Suspension(String),
}

/// The answer of both commands.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RevocationAnswer {
    /// The evicted cluster or the suspended institution.
    name: String,
    /// Whether nothing was changed.
    dry_run: bool,
    /// What becomes of the leases in force.
    treatment: Treatment,
    /// Clusters that take no further part.
    clusters: Vec<String>,
    /// Number of their leases in force: these are treated as asked.
    leases: u32,
    /// Number of their leases that are not in force yet, or whose gang has not started: these end at once.
    starting: u32,
    /// Number of waiting requests that are cancelled.
    requests: u32,
    /// Number of open invitations that are void.
    invitations: u32,
    #[serde(skip)]
    text: String,
}

impl RevocationArgs {
    /// Asks first, naming what ends, and then calls. `call` gets whether it is a dry run, the treatment and the key.
    pub(crate) async fn run<C>(
        &self,
        revocation: Revocation,
        call: impl Fn(bool, v1::LeaseTreatment, String) -> C,
    ) -> Result<RevocationAnswer, Failure>
    where
        C: Future<Output = Result<v1::RevocationEffects, Failure>>,
    {
        let (leases, key) = (self.leases.into(), idempotency_key(self.idempotency_key.as_deref()));
        if self.dry_run {
            return Ok(self.answer(revocation, call(true, leases, key).await?));
        }
        if self.confirm.asks() {
            let effects = call(true, leases, idempotency_key(None)).await?;
            self.confirm.ask_about(&consequence(&revocation, self.leases, &effects))?;
        }
        Ok(self.answer(revocation, call(false, leases, key).await?))
    }

    fn answer(&self, revocation: Revocation, effects: v1::RevocationEffects) -> RevocationAnswer {
        let text = consequence(&revocation, self.leases, &effects);
        let (Revocation::Eviction(name) | Revocation::Suspension(name)) = revocation;
        let v1::RevocationEffects { clusters, leases, starting, requests, invitations } = effects;
        let treatment = self.leases;
        RevocationAnswer {
            name,
            dry_run: self.dry_run,
            treatment,
            clusters,
            leases,
            starting,
            requests,
            invitations,
            text,
        }
    }
}

/// "ncc-main leaves the federation: 3 leases stop at once, 1 waiting request is cancelled, and its certificates are void".
fn consequence(revocation: &Revocation, treatment: Treatment, effects: &v1::RevocationEffects) -> String {
    let (what, certificates) = match revocation {
        Revocation::Eviction(name) => (format!("{name} leaves the federation"), "its certificates are void"),
        Revocation::Suspension(name) => {
            let clusters = counted(effects.clusters.len(), "cluster", "clusters");
            (
                format!("{name} is suspended with {clusters}"),
                "no call of its clusters gets through, nor of people whose roles are all in it",
            )
        }
    };
    let mut parts = what_ends(treatment, effects);
    if effects.invitations > 0 {
        let verb = if effects.invitations == 1 { "is" } else { "are" };
        parts.push(format!("{} {verb} void", counted(effects.invitations, "open invitation", "open invitations")));
    }
    parts.push(certificates.to_owned());
    format!("{what}: {}", listed(&parts))
}

/// "a", "a, and b", "a, b, and c".
pub(crate) fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [only] => only.clone(),
        [others @ .., last] => format!("{}, and {last}", others.join(", ")),
    }
}

/// "3 leases stop at once", "1 waiting request is cancelled".
pub(crate) fn what_ends(treatment: Treatment, effects: &v1::RevocationEffects) -> Vec<String> {
    let (ends, end) = treatment.words();
    let mut parts = Vec::new();
    if effects.leases > 0 {
        let verb = if effects.leases == 1 { ends } else { end };
        parts.push(format!("{} {verb}", counted(effects.leases, "lease", "leases")));
    }
    if effects.starting > 0 {
        let starting = counted(effects.starting, "starting lease", "starting leases");
        let verb = if effects.starting == 1 { "ends" } else { "end" };
        parts.push(format!("{starting} {verb} at once"));
    }
    if effects.requests > 0 {
        let verb = if effects.requests == 1 { "is" } else { "are" };
        parts.push(format!("{} {verb} cancelled", counted(effects.requests, "waiting request", "waiting requests")));
    }
    parts
}

impl Answer for RevocationAnswer {
    fn table(&self, _now_ms: u64) -> Sheet {
        let prefix = if self.dry_run { "dry run, nothing was changed: " } else { "" };
        format!("{prefix}{}", self.text).as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_names_what_ends() {
        let effects = |leases, requests| {
            let clusters = vec!["ncc-main".to_owned()];
            v1::RevocationEffects { clusters, leases, starting: 0, requests, invitations: 0 }
        };
        let evicted = |treatment, effects| consequence(&Revocation::Eviction("ncc-main".into()), treatment, &effects);
        assert_eq!(
            evicted(Treatment::Stop, effects(3, 1)),
            "ncc-main leaves the federation: 3 leases stop at once, 1 waiting request is cancelled, and its \
             certificates are void"
        );
        assert_eq!(
            evicted(Treatment::Finish, effects(1, 0)),
            "ncc-main leaves the federation: 1 lease runs until its term ends, and its certificates are void"
        );
        assert_eq!(
            evicted(Treatment::Drain, effects(0, 0)),
            "ncc-main leaves the federation: its certificates are void"
        );
        assert_eq!(
            evicted(Treatment::Finish, v1::RevocationEffects { starting: 2, ..effects(1, 0) }),
            "ncc-main leaves the federation: 1 lease runs until its term ends, 2 starting leases end at once, and its \
             certificates are void"
        );
        let suspended = Revocation::Suspension("national-centre".into());
        assert_eq!(
            consequence(&suspended, Treatment::Stop, &v1::RevocationEffects { invitations: 2, ..effects(0, 0) }),
            "national-centre is suspended with 1 cluster: 2 open invitations are void, and no call of its clusters gets \
             through, nor of people whose roles are all in it"
        );
        assert_eq!(
            consequence(&suspended, Treatment::Drain, &effects(2, 0)),
            "national-centre is suspended with 1 cluster: 2 leases end after the donor's notice, and no call of its \
             clusters gets through, nor of people whose roles are all in it"
        );
    }
}
