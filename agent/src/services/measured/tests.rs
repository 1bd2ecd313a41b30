#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

#[test]
fn the_offer_has_measured_and_declared_rates() {
    let said = v1::DataSite { egress_mbits: 10_000, ..v1::DataSite::default() };
    assert_eq!(site(Some(&said), &Measured::new()).as_ref(), Some(&said));
    assert_eq!(site(None, &Measured::new()), None);
    let measured = Measured::from([("eos".to_owned(), 940)]);
    let merged = site(Some(&said), &measured).unwrap();
    assert_eq!((merged.egress_mbits, merged.measured_from[0].mbits), (10_000, 940));
    assert_eq!(site(None, &measured).unwrap().measured_from[0].cluster, "eos");
}
