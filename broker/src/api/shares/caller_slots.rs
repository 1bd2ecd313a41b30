//! Shares of a broker's costly calls: how many each caller and each institution may have under way.

use std::collections::BTreeSet;

use comity_policy::Bundle;
use comity_runtime::tls::{HeldSlots, KeyedSlots, SlotLimit};

use crate::api::authorize::roles_of;
use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;

/// How many calls of one kind may be under way.
#[derive(Debug)]
pub struct CallLimits {
    /// The calls in the plural, as in "watches".
    pub what: &'static str,
    /// Of one caller.
    pub per_caller: usize,
    /// Of one institution's callers.
    pub per_institution: usize,
    /// Of this broker.
    pub per_broker: usize,
    /// The remedy for a caller at its own limit.
    pub caller_remedy: &'static str,
    /// The remedy for a caller whose institution is at its limit.
    pub institution_remedy: &'static str,
}

/// Watches: each costs a task and a queue. A caller has one for each command of a person and for each of a few programs.
pub static WATCHES: CallLimits = CallLimits {
    what: "watches",
    per_caller: 32,
    per_institution: 256,
    per_broker: 1_024,
    caller_remedy: "end one of its watches",
    institution_remedy: "end some of them; a watch without `request` shows all requests",
};

/// Whom a call counts for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CountsFor {
    /// A SPIFFE id.
    Caller(String),
    /// An institution.
    Institution(String),
    /// The broker.
    Broker,
}

/// A call's part of the limits, until dropped.
pub type CallerSlot = HeldSlots<CountsFor>;

/// The calls of one kind on this broker. Clones share them.
#[derive(Debug, Clone)]
pub struct CallerSlots {
    limits: &'static CallLimits,
    held: KeyedSlots<CountsFor>,
}

impl CallerSlots {
    /// Without calls under way.
    #[must_use]
    pub fn new(limits: &'static CallLimits) -> Self {
        Self { limits, held: KeyedSlots::default() }
    }

    /// Counts a call until the result is dropped. A caller of several institutions counts for each.
    ///
    /// # Errors
    /// [`RpcError::LimitReached`].
    pub fn take(&self, caller: &Caller, bundle: Option<&Bundle>) -> Result<CallerSlot, RpcError> {
        let CallLimits { what, per_caller, per_institution, per_broker, caller_remedy, institution_remedy } =
            *self.limits;
        let institutions = institutions_of(caller, bundle).into_iter().map(CountsFor::Institution);
        let own = SlotLimit { key: CountsFor::Caller(caller.name()), most: per_caller };
        let institutions = institutions.map(|key| SlotLimit { key, most: per_institution });
        let all = SlotLimit { key: CountsFor::Broker, most: per_broker };
        self.held.take([own].into_iter().chain(institutions).chain([all])).map_err(|SlotLimit { key, most }| {
            let (reason, remedy) = match key {
                CountsFor::Caller(id) => {
                    (format!("{id} has {most} {what}, which is the limit of one caller"), caller_remedy)
                }
                CountsFor::Institution(name) => (
                    format!("callers of {name} have {most} {what}, which is the limit of one institution"),
                    institution_remedy,
                ),
                CountsFor::Broker => {
                    (format!("this broker has {most} {what}, which is its limit"), "connect to another broker")
                }
            };
            RpcError::LimitReached { reason, remedy }
        })
    }

    /// Calls of this broker under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.held.in_use(&CountsFor::Broker)
    }
}

/// The institutions that a caller acts for.
fn institutions_of(caller: &Caller, bundle: Option<&Bundle>) -> BTreeSet<String> {
    let Some(bundle) = bundle else { return BTreeSet::new() };
    if let Caller::Cluster(_, cluster, _) = caller {
        return bundle.institution_of_cluster(cluster.as_str()).map(str::to_owned).into_iter().collect();
    }
    let roles = roles_of(caller, Some(bundle));
    let tenants = roles.tenants.keys().filter_map(|tenant| bundle.tenants.get(tenant));
    let of_tenants = tenants.map(|tenant| tenant.spec.institution.clone());
    of_tenants.chain(roles.institutions_operated.iter().cloned()).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::spiffe::{SpiffeId, TrustDomain, UserName};
    use comity_types::ClusterId;

    use super::*;

    fn bundle() -> Bundle {
        let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/examples");
        let files = comity_policy::read_directory(std::path::Path::new(policy)).unwrap();
        Bundle::compile(&comity_policy::BundleSource::of_files(files)).unwrap()
    }

    fn user(name: &str) -> Caller {
        let domain = TrustDomain::new("comity.example").unwrap();
        Caller::User(SpiffeId::user(domain, UserName::new(name).unwrap()), 0)
    }

    fn cluster(name: &str) -> Caller {
        let id = format!("spiffe://comity.example/cluster/{name}").parse().unwrap();
        Caller::Cluster(id, ClusterId::parse(name, "cluster").unwrap(), 0)
    }

    fn refusal(slots: &CallerSlots, caller: &Caller) -> String {
        slots.take(caller, Some(&bundle())).unwrap_err().to_string()
    }

    #[test]
    fn one_caller_cannot_take_all_slots() {
        let (slots, bundle, alice) = (CallerSlots::new(&WATCHES), bundle(), user("alice"));
        let mut held: Vec<_> = (0..WATCHES.per_caller).map(|_| slots.take(&alice, Some(&bundle)).unwrap()).collect();
        let expected = "spiffe://comity.example/user/alice has 32 watches, which is the limit of one caller";
        assert_eq!(refusal(&slots, &alice), expected);
        slots.take(&user("ivan"), Some(&bundle)).unwrap();
        held.pop();
        held.push(slots.take(&alice, Some(&bundle)).unwrap());
        drop(held);
        assert!(slots.held.is_unused());
    }

    #[test]
    fn one_institution_cannot_take_all_slots() {
        let (slots, bundle) = (CallerSlots::new(&WATCHES), bundle());
        let polytech = BTreeSet::from(["polytechnic".to_owned()]);
        assert_eq!(institutions_of(&user("alice"), Some(&bundle)), polytech);
        assert_eq!(institutions_of(&cluster("polytech-campus"), Some(&bundle)), polytech);
        let taken = (0..WATCHES.per_institution).map(|_| SlotLimit {
            key: CountsFor::Institution("polytechnic".to_owned()),
            most: WATCHES.per_institution,
        });
        let _held = slots.held.take(taken).unwrap();
        let expected = "callers of polytechnic have 256 watches, which is the limit of one institution";
        assert_eq!(refusal(&slots, &user("alice")), expected);
        assert_eq!(refusal(&slots, &cluster("polytech-campus")), expected);
        slots.take(&cluster("ncc-main"), Some(&bundle)).unwrap();
    }

    #[test]
    fn a_broker_has_a_limit_too() {
        let slots = CallerSlots::new(&WATCHES);
        let all = (0..WATCHES.per_broker).map(|_| SlotLimit { key: CountsFor::Broker, most: WATCHES.per_broker });
        let _held = slots.held.take(all).unwrap();
        assert_eq!(refusal(&slots, &user("alice")), "this broker has 1024 watches, which is its limit");
    }
}
