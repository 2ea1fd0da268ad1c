use super::held::{errors, rows_of, spread, values};
use super::*;
use proptest::prelude::*;
use qdiff_engine::cuda::compile::cached;
use qdiff_engine::dtype::DType;
use qdiff_engine::ops::{Context, Tensor, Weight, linear};
use qdiff_engine::quant::{ActivationFormat, GgmlType, Stored, WeightSource};

/// Weights in f32.
#[derive(Debug)]
struct Matrix(usize, usize, Vec<f32>);

impl WeightSource for Matrix {
    fn stored(&self, _: &str) -> Stored<'_> {
        Stored { ty: GgmlType::F32, extent: (self.0, self.1), bytes: bytemuck::cast_slice(&self.2) }
    }
}

const STAGE: StageId = StageId::layer(0, "a_layer");
const OTHER: StageId = StageId::layer(0, "what_it_ends_in");

/// A layer of m outputs, and T rows of n, of any size from 1e-30 to 1e10.
fn layer() -> impl Strategy<Value = (Matrix, Tensor<f64>)> {
    (1usize..70, 1usize..40, 1usize..12, -30i32..10).prop_flat_map(|(n, m, rows, power)| {
        let weights = prop::collection::vec(-2.0f32..2.0, n * m);
        let x = prop::collection::vec(-1.0f64..1.0, n * rows);
        (weights, x).prop_map(move |(weights, x)| {
            let x = x.into_iter().map(|v| v * 10f64.powi(power)).collect();
            (Matrix(n, m, weights), Tensor { shape: vec![rows, n], data: x })
        })
    })
}

/// Of every row and output `f` of each weight and element, added up from the last to the first.
fn naive(Matrix(n, m, weights): &Matrix, x: &Tensor<f64>, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let of = |row: usize, o: usize| (0..*n).rev().map(|i| f(f64::from(weights[o * n + i]), x.row(row)[i])).sum();
    (0..x.rows()).flat_map(|row| (0..*m).map(move |o| (row, o))).map(|(row, o)| of(row, o)).collect()
}

proptest! {
    /// What the CPU gives is the definition, for any shape and size; and what is held against it passes in another order of
    /// its sums, and not with one value, one bound or one error beside it.
    #[test]
    fn products_are_their_definition_and_others_are_told(
        (matrix, x) in layer(), which in any::<prop::sample::Index>(), off in prop_oneof![Just(1e-3), Just(-1e-3), Just(f64::NAN)],
    ) {
        let weights = [Weight { name: "w".to_owned(), extent: vec![matrix.0, matrix.1] }];
        let context = Context { tokens: &[], positions: &[], history: &[], source: &matrix, weights: &weights };
        let products = Products::default();
        let mut layer = products.judging(STAGE).layer(STAGE);
        let reading = (DType::F32, ActivationFormat::F32, false);
        let given = layer.with_bound(&x, &context, reading);
        let dx = x.map(|v| v.abs() as f32);
        let carried = layer.propagate_error(&dx, &context, reading);
        prop_assert!(products.evaluated(STAGE).is_none() && !products.on_device());

        let factor = linear::bound_factor(matrix.0);
        let reach = naive(&matrix, &x, |w, x| (w * x).abs());
        let y = Tensor { shape: given.0.shape.clone(), data: naive(&matrix, &x, |w, x| w * x) };
        let bound: Vec<f32> = reach.iter().map(|v| factor * *v as f32).collect();
        let squares = naive(&matrix, &dx.map(f64::from), |w, d| (w * d).powi(2));
        let other: Vec<f32> = squares.iter().map(|v| v.sqrt() as f32).collect();
        let rows: Vec<usize> = (0..x.rows()).collect();
        prop_assert_eq!(values(&given, (&y, &bound), &rows, &context), None);
        prop_assert_eq!(errors(&carried, &other, &dx, &rows, &context), None);

        let at = which.index(y.data.len());
        let mut wrong = y.clone();
        wrong.data[at] += off * reach[at];
        let told = values(&given, (&wrong, &bound), &rows, &context);
        let place = format!("row {}, output {}", at / matrix.1, at % matrix.1);
        prop_assert!(reach[at] < 1e-30 || told.is_some_and(|told| told.ends_with(&place)));
        let beside = |of: &[f32]| {
            let mut wrong = of.to_vec();
            wrong[at] *= 1.0 + off as f32;
            wrong
        };
        prop_assert!(bound[at] < 1e-30 || values(&given, (&y, &beside(&bound)), &rows, &context).is_some());
        prop_assert!(other[at] < 1e-15 || errors(&carried, &beside(&other), &dx, &rows, &context).is_some());
    }
}

#[test]
fn rows_are_held_all_over_a_batch() {
    assert_eq!(spread(64, 8), [0, 9, 18, 27, 36, 45, 54, 63]);
    assert_eq!(spread(3, 8), [0, 1, 2]);
    assert_eq!(spread(5, usize::MAX), [0, 1, 2, 3, 4]);
    let x = Tensor { shape: vec![3, 2], data: vec![0, 1, 2, 3, 4, 5] };
    assert_eq!(rows_of(&x, &[0, 2]).data, [0, 1, 4, 5]);
}

/// One of every size among them: what is wrong with a large one alone does not show in others.
#[test]
fn of_any_model_some_stages_are_held() {
    let work = |count: u16, weights: fn(u16) -> usize| -> Vec<Work> {
        (0..count).map(|l| Work { stage: StageId::layer(l, "a_layer"), products: 1, weights: weights(l) }).collect()
    };
    for (layers, held) in [(0, 0), (1, 1), (3, 2), (64, 4), (160, 10)] {
        assert_eq!(drawn(&work(layers, |_| 1)).len(), held, "of {layers}");
    }
    for odd in 0..64 {
        let mut all = work(64, |_| 1);
        all[odd].weights = 2;
        let held = drawn(&all);
        assert!(held.contains(&all[odd].stage) && (4..=5).contains(&held.len()), "{odd}: {held:?}");
    }
}

fn on(device: Option<&str>, held: bool, because: Option<&str>) -> Evaluated {
    Evaluated { device: device.map(str::to_owned), held, because: because.map(str::to_owned) }
}

/// Each stage records what the GPU and what the CPU did, and the first reason stays.
#[test]
fn what_evaluated_a_stage_is_told() {
    let products = Products::default();
    let layer = products.judging(OTHER).layer(STAGE);
    assert_eq!(products.evaluated(OTHER), None);
    layer.on_cpu("first".to_owned());
    layer.on_cpu("second".to_owned());
    products.note(OTHER, |evaluated| evaluated.device = Some("a GPU".to_owned()));
    // For the judged stage, wherever in its segment the layer is.
    assert_eq!(products.evaluated(STAGE), None);
    let both = on(Some("a GPU"), false, Some("first"));
    assert_eq!(products.evaluated(OTHER), Some(both.clone()));
    let (device, cpu) = (on(Some("a GPU"), true, None), on(None, false, Some("another")));
    let told = Evaluators::of([(STAGE, &both), (OTHER, &device), (STAGE, &cpu)].into_iter());
    assert_eq!((told.on_device, told.held, told.on_cpu), (2, vec![OTHER], 2));
    assert_eq!(Vec::from_iter(told.because), ["another", "first"]);
}

/// What the device found wrong is evaluated once more, and every row of it on the CPU, whether rows of it were before.
#[test]
fn what_turns_out_wrong_is_held_in_every_row() {
    for (held, chosen, again) in
        [(false, OracleChoice::Cuda, true), (true, OracleChoice::Auto, true), (false, OracleChoice::Both, false)]
    {
        let products = Products::default();
        products.state().choice = Some(chosen);
        assert!(!products.hold(STAGE), "of what the CPU evaluated");
        products.state().held.extend(held.then_some(STAGE));
        products.note(STAGE, |evaluated| *evaluated = on(Some("a GPU"), held, Some("a part on the CPU")));
        assert_eq!(products.hold(STAGE), again);
        assert!(!products.hold(STAGE), "once is enough");
        let rows = |stage| products.judging(stage).layer(STAGE).rows;
        assert_eq!(rows(STAGE), Some(usize::MAX));
        assert_eq!(rows(OTHER), (chosen == OracleChoice::Both).then_some(usize::MAX));
        products.end().unwrap();
        assert_eq!(rows(STAGE), Some(if again { held::ROWS } else { usize::MAX }));
    }
}

/// If a GPU was requested, its failure leaves no verdict; if qdiff chose it, the CPU goes on and the report says so.
#[test]
fn a_device_that_fails_is_told() {
    let because = "CUDA: CUDA_ERROR_OUT_OF_MEMORY in taking device memory for weights";
    let error = anyhow::anyhow!(because);
    for (choice, goes_on) in [(OracleChoice::Auto, true), (OracleChoice::Cuda, false), (OracleChoice::Both, false)] {
        let products = Products::default();
        products.state().choice = Some(choice);
        products.state().active = true;
        products.failed(STAGE, &error);
        assert_eq!((products.trouble().is_ok(), products.end().is_ok()), (goes_on, goes_on));
        assert!(!products.on_device());
        // Stages that are judged after it as well.
        let layer = products.judging(OTHER).layer(OTHER);
        assert!(layer.device.is_none());
        assert_eq!(products.evaluated(OTHER), goes_on.then(|| on(None, false, Some(because))));
    }
}

/// `./scripts/test` brings NVRTC along.
#[test]
fn the_kernel_compiles_without_a_gpu() {
    for arch in ["sm_80", "sm_89", "sm_90a", "sm_100"] {
        let compiled = cached(&device::source(), arch).unwrap_or_else(|e| panic!("{e}"));
        assert!(compiled.cubin.starts_with(b"\x7fELF") && compiled.names.len() == 1, "{arch}");
        assert!(compiled.log.contains("0 bytes spill stores, 0 bytes spill loads"), "{arch}: {}", compiled.log);
    }
}
