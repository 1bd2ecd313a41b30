//! Limits the watches of a broker, of each caller and of each institution: a watch costs a task and a queue.

use std::collections::BTreeSet;

use comity_policy::Bundle;
use comity_runtime::tls::{HeldSlots, KeyedSlots, SlotLimit};

use crate::api::authorize::roles_of;
use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;

/// Maximum watches of one caller: one for each command of a person and for each of a few programs.
pub const MAX_WATCHES_PER_CALLER: usize = 32;
/// Maximum watches of one institution's callers.
pub const MAX_WATCHES_PER_INSTITUTION: usize = 256;
/// Maximum watches of this broker.
pub const MAX_WATCHES: usize = 1_024;

/// Whom a watch counts for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watching {
    /// A SPIFFE id.
    Caller(String),
    /// An institution.
    Institution(String),
    /// The broker.
    Broker,
}

/// The watches of this broker. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct WatchSeats(KeyedSlots<Watching>);

impl WatchSeats {
    /// Takes a seat until the result is dropped. A caller of several institutions counts for each.
    ///
    /// # Errors
    /// [`RpcError::LimitReached`].
    pub fn take(&self, caller: &Caller, bundle: Option<&Bundle>) -> Result<HeldSlots<Watching>, RpcError> {
        let institutions = institutions_of(caller, bundle).into_iter().map(Watching::Institution);
        let own = SlotLimit { key: Watching::Caller(caller.name()), most: MAX_WATCHES_PER_CALLER };
        let institutions = institutions.map(|key| SlotLimit { key, most: MAX_WATCHES_PER_INSTITUTION });
        let all = SlotLimit { key: Watching::Broker, most: MAX_WATCHES };
        self.0.take([own].into_iter().chain(institutions).chain([all])).map_err(|limit| {
            let most = limit.most;
            let (whose, remedy) = match limit.key {
                Watching::Caller(id) => {
                    (format!("{id} has {most} watches, which is the limit of one caller"), "end one of its watches")
                }
                Watching::Institution(name) => (
                    format!("callers of {name} have {most} watches, which is the limit of one institution"),
                    "end some of them; a watch without `request` shows all requests",
                ),
                Watching::Broker => {
                    (format!("this broker has {most} watches, which is its limit"), "connect to another broker")
                }
            };
            RpcError::LimitReached { reason: whose, remedy }
        })
    }
}

/// The institutions that a caller acts for.
fn institutions_of(caller: &Caller, bundle: Option<&Bundle>) -> BTreeSet<String> {
    let Some(bundle) = bundle else { return BTreeSet::new() };
    if let Caller::Cluster(_, cluster) = caller {
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
        Bundle::compile(&comity_policy::BundleSource { files, commit: None }).unwrap()
    }

    fn user(name: &str) -> Caller {
        let domain = TrustDomain::new("comity.example").unwrap();
        Caller::User(SpiffeId::user(domain, UserName::new(name).unwrap()))
    }

    fn cluster(name: &str) -> Caller {
        let id = format!("spiffe://comity.example/cluster/{name}").parse().unwrap();
        Caller::Cluster(id, ClusterId::parse(name, "cluster").unwrap())
    }

    fn refusal(seats: &WatchSeats, caller: &Caller) -> String {
        seats.take(caller, Some(&bundle())).unwrap_err().to_string()
    }

    #[test]
    fn one_caller_cannot_take_all_seats() {
        let (seats, bundle, alice) = (WatchSeats::default(), bundle(), user("alice"));
        let mut held: Vec<_> =
            (0..MAX_WATCHES_PER_CALLER).map(|_| seats.take(&alice, Some(&bundle)).unwrap()).collect();
        let expected = "spiffe://comity.example/user/alice has 32 watches, which is the limit of one caller";
        assert_eq!(refusal(&seats, &alice), expected);
        seats.take(&user("ivan"), Some(&bundle)).unwrap();
        held.pop();
        held.push(seats.take(&alice, Some(&bundle)).unwrap());
        drop(held);
        assert!(seats.0.is_unused());
    }

    #[test]
    fn one_institution_cannot_take_all_seats() {
        let (seats, bundle) = (WatchSeats::default(), bundle());
        let polytech = BTreeSet::from(["polytechnic".to_owned()]);
        assert_eq!(institutions_of(&user("alice"), Some(&bundle)), polytech);
        assert_eq!(institutions_of(&cluster("polytech-campus"), Some(&bundle)), polytech);
        let taken = (0..MAX_WATCHES_PER_INSTITUTION).map(|_| SlotLimit {
            key: Watching::Institution("polytechnic".to_owned()),
            most: MAX_WATCHES_PER_INSTITUTION,
        });
        let _held = seats.0.take(taken).unwrap();
        let expected = "callers of polytechnic have 256 watches, which is the limit of one institution";
        assert_eq!(refusal(&seats, &user("alice")), expected);
        assert_eq!(refusal(&seats, &cluster("polytech-campus")), expected);
        seats.take(&cluster("ncc-main"), Some(&bundle)).unwrap();
    }

    #[test]
    fn a_broker_has_a_limit_too() {
        let seats = WatchSeats::default();
        let all = (0..MAX_WATCHES).map(|_| SlotLimit { key: Watching::Broker, most: MAX_WATCHES });
        let _held = seats.0.take(all).unwrap();
        assert_eq!(refusal(&seats, &user("alice")), "this broker has 1024 watches, which is its limit");
    }
}
