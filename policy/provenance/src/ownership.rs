//! Who must sign which change: a function of the documents before and after it.
//!
//! | documents | who signs |
//! |---|---|
//! | GpuClass, PriorityClass, RequestTemplate, Schedule, Rule | a maintainer |
//! | Schedule of a Reservation | a maintainer, and the institutions of the reservation's clusters |
//! | Federation | a maintainer; several for a change of maintainers, broker operators, their keys or `signatures`; all institutions with keys for an end of `signatures.required` |
//! | Institution | a maintainer admits and removes it; else the institution, and for its `weight` a maintainer too |
//! | Cluster, Tenant, Quota, Dataset | their institution; if they move, both |
//! | Quota that joins a cohort, or may borrow more there | the institutions of all other members, too |
//! | Reservation | the institutions of all its clusters; each alone may take its own clusters out |
//! | Agreement | every institution that it names; one of two alone may narrow or end it, and each may leave it |
//!
//! Maintainers sign for an institution that lists no `commitKeys`. A maintainer who removes an institution may remove its
//! name from the documents of others, too. The names of an institution that left, and of its clusters, tenants and
//! datasets, stay taken: as many maintainers as change who they are give them to somebody.

mod agreements;
mod cohorts;
mod lending;
mod reservations;

use std::collections::BTreeSet;
use std::fmt;

use comity_policy::{Federation, Institution, Kind};

use crate::documents::{DocumentKey, DocumentSpec, Documents};
use crate::signer::Signer;
use crate::taken_names::taken_name;

/// Somebody whose signature a change needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// So many different maintainers.
    Maintainers(u32),
    /// An institution, with any of its keys.
    Institution(String),
    /// One of these maintainers, who are broker operators.
    BrokerOperator(BTreeSet<String>),
}

impl Owner {
    fn is_among(&self, signers: &BTreeSet<Signer>) -> bool {
        match self {
            Self::Maintainers(needed) => maintainers_among(signers) >= *needed,
            Self::Institution(name) => signers.contains(&Signer::Institution(name.clone())),
            Self::BrokerOperator(users) => users.iter().any(|user| signers.contains(&Signer::Maintainer(user.clone()))),
        }
    }

    fn show_missing(&self, signers: &BTreeSet<Signer>) -> String {
        match self {
            Self::Maintainers(1) => "a maintainer".to_owned(),
            Self::Maintainers(needed) => format!("{needed} maintainers (it has {})", maintainers_among(signers)),
            Self::Institution(name) => format!("institution `{name}`"),
            Self::BrokerOperator(_) => "a maintainer who is a broker operator".to_owned(),
        }
    }
}

fn maintainers_among(signers: &BTreeSet<Signer>) -> u32 {
    let maintainers = signers.iter().filter(|signer| matches!(signer, Signer::Maintainer(_)));
    u32::try_from(maintainers.count()).unwrap_or(u32::MAX)
}

/// The signatures that a change needs: those of all owners of one of the alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    alternatives: Vec<BTreeSet<Owner>>,
}

impl Requirement {
    fn all(owners: impl IntoIterator<Item = Owner>) -> Self {
        Self { alternatives: vec![owners.into_iter().collect()] }
    }

    fn one(owner: Owner) -> Self {
        Self::all([owner])
    }

    /// With the signatures of further owners in each alternative.
    fn and(mut self, owners: &BTreeSet<Owner>) -> Self {
        self.alternatives.iter_mut().for_each(|alternative| alternative.extend(owners.iter().cloned()));
        self
    }

    fn or(mut self, owner: Owner) -> Self {
        let alternative = BTreeSet::from([owner]);
        if !self.alternatives.contains(&alternative) {
            self.alternatives.push(alternative);
        }
        self
    }

    /// Whether these signers may make the change.
    #[must_use]
    pub fn is_met(&self, signers: &BTreeSet<Signer>) -> bool {
        self.alternatives.iter().any(|owners| owners.iter().all(|owner| owner.is_among(signers)))
    }

    /// The owners whose signatures are missing, for people.
    #[must_use]
    pub fn show_missing(&self, signers: &BTreeSet<Signer>) -> String {
        let missing = |owners: &BTreeSet<Owner>| {
            let missing = owners.iter().filter(|owner| !owner.is_among(signers));
            missing.map(|owner| owner.show_missing(signers)).collect::<Vec<_>>().join(" and ")
        };
        self.alternatives.iter().map(missing).collect::<Vec<_>>().join(", or ")
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show_missing(&BTreeSet::new()))
    }
}

/// What surrounds the change of a document.
pub(crate) struct Change<'d> {
    /// The accepted documents before it.
    pub(crate) before: &'d Documents,
    /// All documents after it.
    pub(crate) after: &'d Documents,
    /// Names of institutions that left the federation earlier.
    pub(crate) taken_names: &'d BTreeSet<String>,
}

/// The signatures that the change of one document needs.
#[must_use]
pub fn requirement(
    key: &DocumentKey,
    before: &Documents,
    after: &Documents,
    taken_names: &BTreeSet<String>,
) -> Requirement {
    let change = Change { before, after, taken_names };
    let (old, new) = (before.get(key), after.get(key));
    match key.kind {
        Kind::Federation => change.of_federation(old, new),
        Kind::GpuClass | Kind::PriorityClass | Kind::RequestTemplate | Kind::Rule => {
            Requirement::one(Owner::Maintainers(1))
        }
        Kind::Schedule => Requirement::one(Owner::Maintainers(1)).and(&change.donors_that_reserve_during(&key.name)),
        Kind::Reservation => change.of_reservation(old, new),
        Kind::Institution => change.of_institution(&key.name, old, new),
        Kind::Cluster | Kind::Dataset => change.of_possession(key, old, new),
        Kind::Tenant => change.of_possession(key, old, new).and(&change.peers_of_moved_tenant(&key.name, old, new)),
        Kind::Quota => change.of_possession(key, old, new).and(&change.peers_of_quota(&key.name, old, new)),
        Kind::Agreement => change.of_agreement(old, new),
    }
}

fn federation_of(spec: Option<&DocumentSpec>) -> Option<&Federation> {
    if let Some(DocumentSpec::Federation(federation)) = spec { Some(federation) } else { None }
}

/// Whether a change leaves alone who decides about the federation.
fn is_ordinary(old: &Federation, new: &Federation) -> bool {
    old.trust_domain == new.trust_domain
        && old.maintainers == new.maintainers
        && old.broker_operators == new.broker_operators
        && old.commit_keys == new.commit_keys
        && old.signatures == new.signatures
}

impl Change<'_> {
    /// Maintainers who must sign what concerns them all.
    fn threshold(&self) -> u32 {
        self.before.federation().map_or(u32::MAX, |federation| federation.signatures.maintainers_needed)
    }

    /// Who signs for an institution: maintainers, until it lists keys of its own, and after it left.
    fn owner(&self, institution: &str) -> Owner {
        match self.before.institution(institution) {
            Some(it) if !it.commit_keys.is_empty() => Owner::Institution(institution.to_owned()),
            None if self.is_taken(Kind::Institution, institution) => Owner::Maintainers(self.threshold()),
            _ => Owner::Maintainers(1),
        }
    }

    /// Those that have keys and stay.
    fn institutions_with_keys(&self) -> impl Iterator<Item = Owner> {
        let names = self.before.iter().filter_map(|(key, spec)| match spec {
            DocumentSpec::Institution(it) if !it.commit_keys.is_empty() && !self.is_gone(&key.name) => Some(&key.name),
            _ => None,
        });
        names.cloned().map(Owner::Institution)
    }

    fn is_taken(&self, kind: Kind, name: &str) -> bool {
        self.taken_names.contains(&taken_name(kind, name))
    }

    /// Who gives a new name away, beside the one that gets it.
    fn givers(&self, kind: Kind, name: &str) -> Option<Owner> {
        self.is_taken(kind, name).then(|| Owner::Maintainers(self.threshold()))
    }

    /// Those who enrolled the clusters before that an institution lists newly.
    fn givers_of_clusters(&self, name: &str, old: Option<&Institution>, new: &Institution) -> BTreeSet<Owner> {
        let added = new.clusters.iter().filter(|cluster| old.is_none_or(|old| !old.clusters.contains(*cluster)));
        let givers = added.flat_map(|cluster| {
            let before = self.before.institution_that_lists(cluster).filter(|before| *before != name);
            before.map(|before| self.owner(before)).into_iter().chain(self.givers(Kind::Cluster, cluster))
        });
        givers.collect()
    }

    /// Whether the change removes an institution.
    fn is_gone(&self, institution: &str) -> bool {
        self.before.institution(institution).is_some() && self.after.institution(institution).is_none()
    }

    /// A new broker operator needs one who is: others could otherwise invite brokers, and with that get the
    /// intermediate's key.
    fn of_federation(&self, old: Option<&DocumentSpec>, new: Option<&DocumentSpec>) -> Requirement {
        let (old, new) = (federation_of(old), federation_of(new));
        if let (Some(old), Some(new)) = (old, new)
            && is_ordinary(old, new)
        {
            return Requirement::one(Owner::Maintainers(1));
        }
        let mut owners = BTreeSet::from([Owner::Maintainers(self.threshold())]);
        let held = self.before.federation().map(|held| (&held.broker_operators, &held.maintainers));
        if let (Some(new), Some((operators, maintainers))) = (new, held)
            && !new.broker_operators.is_subset(operators)
        {
            owners.insert(Owner::BrokerOperator(operators.intersection(maintainers).cloned().collect()));
        }
        // Without signatures nothing of theirs would be theirs any more.
        let requires = |federation: Option<&Federation>| federation.is_some_and(|it| it.signatures.required);
        if requires(old) && !requires(new) {
            owners.extend(self.institutions_with_keys());
        }
        Requirement::all(owners)
    }

    fn of_institution(&self, name: &str, old: Option<&DocumentSpec>, new: Option<&DocumentSpec>) -> Requirement {
        match (old, new) {
            // Names belong to those who had them: a maintainer alone could otherwise remove an institution and admit
            // another one of the same name, with other keys, or one that takes its clusters.
            (None, Some(DocumentSpec::Institution(new))) => {
                let givers = self.givers(Kind::Institution, name).into_iter();
                let givers = givers.chain(self.givers_of_clusters(name, None, new));
                Requirement::one(Owner::Maintainers(1)).and(&givers.collect())
            }
            (None, _) => Requirement::one(Owner::Maintainers(1)),
            (Some(_), None) => Requirement::one(Owner::Maintainers(1)).or(self.owner(name)),
            (Some(DocumentSpec::Institution(old)), Some(DocumentSpec::Institution(new))) => {
                self.of_changed_institution(name, old, new)
            }
            (Some(_), Some(_)) => Requirement::one(self.owner(name)),
        }
    }

    /// An institution's weight is its share among all: it does not raise it alone.
    fn of_changed_institution(&self, name: &str, old: &Institution, new: &Institution) -> Requirement {
        let mut owners = BTreeSet::from([self.owner(name)]);
        if old.weight != new.weight {
            owners.insert(Owner::Maintainers(1));
        }
        owners.extend(self.givers_of_clusters(name, Some(old), new));
        Requirement::all(owners)
    }

    /// Documents of an institution: before and after the change.
    fn of_possession(&self, key: &DocumentKey, old: Option<&DocumentSpec>, new: Option<&DocumentSpec>) -> Requirement {
        let owner_of = |spec: &DocumentSpec, documents: &Documents| match spec {
            DocumentSpec::Cluster(cluster) => Some(cluster.institution.clone()),
            DocumentSpec::Tenant(tenant) => Some(tenant.institution.clone()),
            DocumentSpec::Dataset(dataset) => Some(dataset.institution.clone()),
            DocumentSpec::Quota(quota) => documents.institution_of_quota(quota).map(str::to_owned),
            _ => None,
        };
        let had = old.and_then(|old| owner_of(old, self.before));
        let has = new.and_then(|new| owner_of(new, self.after));
        let mut owners: BTreeSet<Owner> = had.iter().chain(&has).map(|name| self.owner(name)).collect();
        if new.is_some() {
            owners.extend(self.givers(key.kind, &key.name));
        }
        let of_owners = if owners.is_empty() {
            Requirement::one(Owner::Maintainers(self.threshold()))
        } else {
            Requirement::all(owners)
        };
        let goes_with_institution = new.is_none() && had.is_some_and(|name| self.is_gone(&name));
        if goes_with_institution || self.only_forgets_the_gone(old, new) {
            return of_owners.or(Owner::Maintainers(1));
        }
        of_owners
    }
}
