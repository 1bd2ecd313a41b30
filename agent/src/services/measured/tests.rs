#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

#[test]
fn the_offer_has_measured_and_declared_rates() {
    let configured = v1::DataSite { egress_mbits: 10_000, ..v1::DataSite::default() };
    assert_eq!(site(Some(&configured), &Measured::new()).as_ref(), Some(&configured));
    assert_eq!(site(None, &Measured::new()), None);
    let measured = Measured::from([("eos".to_owned(), 940)]);
    let merged = site(Some(&configured), &measured).unwrap();
    assert_eq!((merged.egress_mbits, merged.measured_from[0].mbits), (10_000, 940));
    assert_eq!(site(None, &measured).unwrap().measured_from[0].cluster, "eos");
}
