//! Correct engines are never called wrong, in any order of sums, with any form of a function,
//! with any fused ops, and with any part left out of their captures.

use qdiff::loaded::LoadedModel;
use qdiff_tests::empty;
use qdiff_tests::false_alarms::{Total, all, write_model};

/// One of so many stages and pairs of stages is left out of each variant's captures; `--example false_alarms` leaves out
/// all.
const SHARE: usize = 20;

#[test]
fn a_right_engine_is_never_said_to_be_wrong() {
    let folder = empty();
    let path = folder.join("model.gguf");
    write_model(&path);
    let opened = LoadedModel::new(&path).unwrap();
    let mut total = Total::default();
    all(&opened, SHARE, |judged| total.take(judged));
    assert!(total.captures > 900, "{}", total.captures);
    for judged in &total.alarms {
        let (style, order) = (judged.variant.style.name, judged.variant.order_name);
        println!("{style}, {order}, without {:?}: {:?}, {:?}", judged.left_out, judged.wrong, judged.worst());
    }
    assert_eq!(total.alarms.len(), 0, "of {} captures", total.captures);
    // Silence does not help either: nearly all is judged, and bounds are not out of reach.
    let worst = total.worst.unwrap().worst();
    assert!((0.3..1.0).contains(&worst.1), "{worst:?}");
}
