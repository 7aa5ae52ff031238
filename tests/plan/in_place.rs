//! Products that are added to their own result, as a call of cuBLAS with a beta asks for: what runs them, and what does not.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::kernel::{Fusion, Rejection, Role};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Operand};
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};

fn h100() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

/// The product, added to D.
fn added(product: Problem, beta: f64) -> Problem {
    let mut epilogue = Epilogue::new(1.0, beta);
    epilogue.c = Some(product.d);
    epilogue.in_place = true;
    product.with(|p| p.epilogue = epilogue)
}

fn dense(m: usize, n: usize, k: usize, layout: Layout, dtype: Format) -> Problem {
    Problem::dense(m, n, k, 1, layout, dtype)
}

fn verdict(problem: &Problem, kernel: &str) -> Result<(), Rejection> {
    family::by_name(kernel).expect(kernel).supports(&problem.canonical().problem, &DeviceInfo::h100())
}

#[test]
fn unaligned_operands_that_are_added_in_place_have_kernels_that_are_made_for_more() {
    for (m, n, k) in [(500, 4095, 4097), (16, 33, 1001), (3, 385, 96)] {
        for dtype in [Format::BF16, Format::F16] {
            let in_place = added(dense(m, n, k, Layout::NN, dtype), 1.0);
            let plan = h100().plan(&in_place, Policy::default()).unwrap();
            assert_ne!(plan.kernel.role, Role::LastResort, "{in_place}");
        }
    }
    let long = added(dense(500, 4095, 4097, Layout::NT, Format::BF16), 1.0);
    let plan = h100().plan(&long, Policy::default()).unwrap();
    assert!(plan.name().ends_with("+copies_AB") && plan.workspace.best == plan.workspace.least, "{}", plan.name());
}

#[test]
fn cublas_adds_in_place_and_fuses_nothing_else() {
    let in_place = added(dense(64, 64, 64, Layout::NT, Format::F32), -0.5);
    assert_eq!(verdict(&in_place, "cublas_f32_nt"), Ok(()));
    let no_beta = Err(Rejection::Epilogue { what: "beta * C" });
    let mut other = in_place;
    other.epilogue.in_place = false;
    assert_eq!(verdict(&other, "cublas_f32_nt"), no_beta);
    let mut elsewhere = in_place;
    elsewhere.epilogue.c = Some(in_place.d.with(|o| o.row_stride = 128));
    assert_eq!(verdict(&elsewhere, "cublas_f32_nt"), no_beta, "C does not lie as D does");
    let mut biased = in_place;
    biased.epilogue.bias = Some(BiasAxis::N);
    assert_eq!(verdict(&biased, "cublas_f32_nt"), Err(Rejection::Epilogue { what: "a bias" }));
    let mut activated = in_place;
    activated.epilogue.activation = Activation::Relu;
    assert_eq!(verdict(&activated, "cublas_f32_nt"), Err(Rejection::Epilogue { what: "an activation" }));
}

#[test]
fn in_place_stays_so_in_the_canonical_form_where_c_is_read() {
    let mut product = Problem::dense(8, 64, 32, 4, Layout::NT, Format::F32);
    product.b.batch_stride = [0, 0]; // folded into one product
    for d in [product.d, Operand::col_major(product.d.format, 8, [0, 8 * 64])] {
        let canonical = added(product.with(|p| p.d = d), 1.0).canonical().problem;
        assert!(canonical.epilogue.in_place && canonical.epilogue.c == Some(canonical.d), "{canonical:?}");
    }
    let unread = added(product, 0.0).canonical().problem;
    assert_eq!(unread, product.canonical().problem);
    let epilogue = added(product, 1.0).epilogue;
    let kept = [Fusion::Full, Fusion::BiasAct, Fusion::None].map(|fusion| epilogue.keep(fusion).0.in_place);
    assert_eq!(kept, [true, false, false]);
}

#[test]
fn a_product_in_place_is_never_launched_in_parts() {
    let mut cut = 0;
    for f32_mode in F32Mode::ALL {
        for layout in [Layout::NN, Layout::NT, Layout::TN, Layout::TT] {
            let product = dense(8192, 8192, 8192, layout, Format::F32).with(|p| p.f32_mode = f32_mode);
            let canonical = added(product, 1.0).canonical().problem;
            for kernel in KERNELS.iter().filter(|kernel| kernel.layout == layout && kernel.types.a == Format::F32) {
                let need = kernel.workspace(&canonical);
                assert_eq!(need.least, need.best, "{kernel}");
                let beside = kernel.workspace(&product);
                cut += usize::from(beside.least < beside.best);
            }
            let plan = h100().plan(&canonical, Policy::default()).unwrap();
            assert!(plan.workspace.best <= Policy::default().workspace, "{canonical} on {}", plan.kernel);
        }
    }
    assert!(cut > 0, "no kernel would be cut");
    // Beyond a grid simt_gemm launches batch by batch.
    let mut many = Problem::dense(1, 1, 8, 1 << 31, Layout::NT, Format::F32);
    many.f32_mode = F32Mode::Strict;
    let simt = KERNELS.iter().find(|k| k.family == "simt_gemm" && k.layout == Layout::NT && k.arch.capability == 90);
    let simt = simt.expect("a row of simt_gemm").name;
    assert_eq!(verdict(&many, simt), Ok(()));
    let most = i32::MAX as usize;
    assert_eq!(verdict(&added(many, 1.0), simt), Err(Rejection::TooMany { what: "tiles", have: most + 1, most }));
}

#[test]
fn cublas_takes_leading_dimensions_of_32_bits_only() {
    let product = dense(300, 520, 264, Layout::NT, Format::BF16);
    let far = 1i64 << 31;
    let apart = |operand: Operand| match operand.col_stride {
        1 => operand.with(|o| o.row_stride = far),
        _ => operand.with(|o| o.col_stride = far),
    };
    let cases = [
        ("A", product.with(|p| p.a = apart(product.a))),
        ("B", product.with(|p| p.b = apart(product.b))),
        ("D", product.with(|p| p.d = apart(product.d))),
    ];
    for (operand, problem) in cases {
        let expected = Rejection::LeadingDimension { operand, have: far };
        assert!(expected.to_string().contains("2147483648"), "{expected}");
        assert_eq!(verdict(&problem, "cublas_bf16_nt"), Err(expected));
        assert_ne!(h100().plan(&problem, Policy::default()).unwrap().kernel.role, Role::Vendor);
    }
    assert_eq!(verdict(&product, "cublas_bf16_nt"), Ok(()));
}

/// A trace of a program has such products, too; a row has C beside D.
#[test]
fn a_suite_has_a_row_for_a_product_in_place() {
    use candle_tilegemm::internal::suite::Shape;
    let product = dense(5, 7, 3, Layout::NN, Format::F32);
    let row = Shape::of(&added(product, 0.5), "row".into(), "f32".into()).expect("a row").problem();
    assert_eq!((row.epilogue.beta(), row.epilogue.c, row.epilogue.in_place), (0.5, Some(product.d), false));
}
