"""Facts about the public data sets: files, checksums, URLs, classes, the paper's split, licence, caveats.

Checksums are of the *unpacked* content. A gzip header stores a file name and a time, so the same data come in
different gzip files: Fashion-MNIST alone has two official ones.
"""

from __future__ import annotations

from dataclasses import dataclass

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",  # the authors' page; it has refused downloads for some years
)
FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)


@dataclass(frozen=True)
class PublicFile:
    """One file of a data set. `name` ends in .gz if it is published that way; it is found with or without."""

    name: str
    size: int  # bytes, unpacked
    sha256: str  # of the unpacked content
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublicArchive:
    """A tar.gz with the files of a data set, inside a folder named as `PublicSet.folder`."""

    most: int  # largest size in bytes
    sha256: str  # of the archive itself
    urls: tuple[str, ...]


@dataclass(frozen=True)
class PublicSet:
    """What is known about a data set without opening it."""

    name: str
    title: str
    kind: str  # "grey images", "colour images", "I/Q", "channel state" or "texts"
    n_train: int
    n_test: int
    sample: str  # one sample in words
    class_names: tuple[str, ...]
    new_classes: tuple[int, ...] | int  # those that the paper hides, or how many to draw at random
    source: str
    authors: str
    licence: str
    caveats: str
    folder: str = ""  # inside CDKNET_DATA or the cache; "" if there are no files
    files: tuple[PublicFile, ...] = ()
    archive: PublicArchive | None = None
    by_hand: str = ""  # how to get it if there is no URL to download from


def _idx_files(mirrors: tuple[str, ...], *checksums: str) -> tuple[PublicFile, ...]:
    """The four files of MNIST and of data sets in its format."""
    parts = (
        ("train-images-idx3", 47_040_016),
        ("train-labels-idx1", 60_008),
        ("t10k-images-idx3", 7_840_016),
        ("t10k-labels-idx1", 10_008),
    )
    return tuple(
        PublicFile(f"{part}-ubyte.gz", size, sha256, tuple(f"{mirror}{part}-ubyte.gz" for mirror in mirrors))
        for (part, size), sha256 in zip(parts, checksums, strict=True)
    )


MNIST = PublicSet(
    name="mnist",
    title="MNIST: handwritten digits",
    kind="grey images",
    n_train=60_000,
    n_test=10_000,
    sample="28 x 28 pixels, white on black",
    class_names=tuple("0123456789"),
    new_classes=(5, 6, 7, 8, 9),
    source="http://yann.lecun.com/exdb/mnist/",
    authors=(
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document "
        "recognition, Proceedings of the IEEE 86(11), 1998. Files by Y. LeCun, C. Cortes and C. J. C. "
        "Burges"
    ),
    licence="Creative Commons Attribution-ShareAlike 3.0, as the files are commonly redistributed",
    caveats=(
        "Nearly solved: a linear model reaches .92. Digits are size-normalised and centred, so it says "
        "little about natural images. The writers of the test part differ from those of the "
        "training part."
    ),
    folder="mnist",
    files=_idx_files(
        MNIST_MIRRORS,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)

FASHION_MNIST = PublicSet(
    name="fashion-mnist",
    title="Fashion-MNIST: articles of clothing",
    kind="grey images",
    n_train=60_000,
    n_test=10_000,
    sample="28 x 28 pixels, the article on black",
    class_names=(
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    new_classes=(5, 6, 7, 8, 9),
    source="https://github.com/zalandoresearch/fashion-mnist",
    authors=(
        "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine "
        "learning algorithms, arXiv:1708.07747, 2017"
    ),
    licence="MIT, copyright Zalando SE",
    caveats=(
        "Classes overlap: shirt, t-shirt, pullover and coat often cannot be distinguished in the "
        "image. With the paper's split, shirt is new while its three look-alikes are old."
    ),
    folder="fashion-mnist",
    files=_idx_files(
        FASHION_MIRRORS,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)

CIFAR_100_CLASSES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
    "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile "
    "cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp "
    "lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree "
    "orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum "
    "rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider "
    "squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train "
    "trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

CIFAR_100 = PublicSet(
    name="cifar-100",
    title="CIFAR-100: small colour photographs",
    kind="colour images",
    n_train=50_000,
    n_test=10_000,
    sample="32 x 32 pixels in red, green and blue",
    class_names=tuple(CIFAR_100_CLASSES.split()),
    new_classes=tuple(range(70, 100)),
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    authors="A. Krizhevsky: Learning multiple layers of features from tiny images, Toronto, 2009",
    licence="None stated; the authors' page asks for citation of the report",
    caveats=(
        "500 training images per class. A subset of the 80 Million Tiny Images, which its authors withdrew"
        " in 2020; about one test image in ten has a near-duplicate in the training part (Barz and "
        "Denzler, 2020). The hundred fine classes are used, not the twenty superclasses."
    ),
    folder="cifar-100-binary",
    files=(
        PublicFile(
            "train.bin", 153_700_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"
        ),
        PublicFile(
            "test.bin", 30_740_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"
        ),
    ),
    archive=PublicArchive(
        200_000_000,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    ),
)

DIGITS = PublicSet(
    name="digits",
    title="Digits: small handwritten digits that come with scikit-learn",
    kind="grey images",
    n_train=1_437,
    n_test=360,
    sample="8 x 8 pixels, 0 to 16",
    class_names=tuple("0123456789"),
    new_classes=(5, 6, 7, 8, 9),
    source="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    authors="E. Alpaydin and C. Kaynak: Optical recognition of handwritten digits, UCI repository, 1998",
    licence="Creative Commons Attribution 4.0",
    caveats=(
        "Only the 1,797 samples of the original test part. There is no official split: here 80 % are "
        "for training, by a fixed random order. Too small to judge a method by; good for first steps."
    ),
)

RF_50_SIM = PublicSet(
    name="rf-50-sim",
    title="rf-50-sim: simulated WiFi transmitters",
    kind="I/Q",
    n_train=50 * 141,
    n_test=50 * 35,
    sample="slices of 198 I/Q values from IEEE 802.11a/g frames; counts are of transmissions",
    class_names=tuple(f"device-{device:02d}" for device in range(50)),
    new_classes=15,
    source="simulated by cdknet.radio",
    authors="the cdknet authors; signal tables from IEEE Std 802.11-2020, clause 17",
    licence="MIT, as cdknet",
    caveats="A simulation, not RF-50, which is not public. Its numbers cannot be compared with the paper's.",
)

WIFI_CSI_30 = PublicSet(
    name="wifi-csi-30",
    title="wifi-csi-30: channel state of thirty real WiFi devices",
    kind="channel state",
    n_train=9_182,
    n_test=3_932,
    sample="10 frames averaged: amplitude and phase of 3 antennas x 30 subcarriers; 131,435 frames in all",
    class_names=tuple(f"device-{device:02d}" for device in range(1, 31)),
    new_classes=tuple(range(20, 30)),
    source="https://github.com/YanDawei101/WiFi_device_fingerprint, Dataset I, device_identify",
    authors=(
        "D. Yan, Y. Yan, P. Yang et al.: Real-time identification of rogue WiFi connections in the wild,"
        " IEEE Internet of Things Journal 10(7), 2022"
    ),
    licence="None stated; the authors ask for citation",
    caveats=(
        "One recording per device, so part of what separates the devices is the channel and not the "
        "device. Several devices are of the same model. Split by time: earlier frames are for "
        "training, later frames for testing."
    ),
    folder="wifi-csi-30",
    files=(
        PublicFile(
            "wifi_csi_30.npz", 15_744_205, "d8e01ffc0551bed4d0313e8609b6df11a9090c36efd3fd24fd8e6b8b802df6fe"
        ),
    ),
    by_hand=(
        "There is no URL to download it from: make it from the authors' traces, with arrays `csi` "
        "(131435, 2, 3, 30) int8 and `device` (131435,) of 1 to 30"
    ),
)

INTENTS_BY_HAND = (
    "There is no URL to download it from: make it of the files train.tsv and test.tsv of the TEXTOIR "
    "collection (https://github.com/thuiar/TEXTOIR), written by Python's csv.writer in UTF-8, with the "
    "columns text and label"
)

BANKING_INTENTS = (
    "Refund_not_showing_up activate_my_card age_limit apple_pay_or_google_pay atm_support "
    "automatic_top_up balance_not_updated_after_bank_transfer "
    "balance_not_updated_after_cheque_or_cash_deposit beneficiary_not_allowed cancel_transfer "
    "card_about_to_expire card_acceptance card_arrival card_delivery_estimate card_linking "
    "card_not_working card_payment_fee_charged card_payment_not_recognised "
    "card_payment_wrong_exchange_rate card_swallowed cash_withdrawal_charge "
    "cash_withdrawal_not_recognised change_pin compromised_card contactless_not_working "
    "country_support declined_card_payment declined_cash_withdrawal declined_transfer "
    "direct_debit_payment_not_recognised disposable_card_limits edit_personal_details exchange_charge "
    "exchange_rate exchange_via_app extra_charge_on_statement failed_transfer fiat_currency_support "
    "get_disposable_virtual_card get_physical_card getting_spare_card getting_virtual_card "
    "lost_or_stolen_card lost_or_stolen_phone order_physical_card passcode_forgotten "
    "pending_card_payment pending_cash_withdrawal pending_top_up pending_transfer pin_blocked "
    "receiving_money request_refund reverted_card_payment? supported_cards_and_currencies "
    "terminate_account top_up_by_bank_transfer_charge top_up_by_card_charge top_up_by_cash_or_cheque "
    "top_up_failed top_up_limits top_up_reverted topping_up_by_card transaction_charged_twice "
    "transfer_fee_charged transfer_into_account transfer_not_received_by_recipient transfer_timing "
    "unable_to_verify_identity verify_my_identity verify_source_of_funds verify_top_up "
    "virtual_card_not_working visa_or_mastercard why_verify_identity wrong_amount_of_cash_received "
    "wrong_exchange_rate_for_cash_withdrawal"
)

BANKING77 = PublicSet(
    name="banking77",
    title="BANKING77: questions to a bank",
    kind="texts",
    n_train=9_003,
    n_test=3_080,
    sample="one question of a customer in English, 13 to 433 characters",
    class_names=tuple(BANKING_INTENTS.split()),
    new_classes=19,
    source="https://github.com/PolyAI-LDN/task-specific-datasets",
    authors=(
        "I. Casanueva, T. Temcinas, D. Gerz, M. Henderson, I. Vulic: Efficient intent detection with dual "
        "sentence encoders, NLP for ConvAI, 2020"
    ),
    licence="Creative Commons Attribution 4.0",
    caveats=(
        "77 intents of one bank, some of which people confuse as well. The training part is that of the "
        "published tables of intent discovery, which keep 1,000 training questions for validation."
    ),
    folder="intents/banking",
    files=(
        PublicFile("train.csv", 754_437, "8a34be6b9ac992595585ef5674f6aa420669af60ce3e0caad82343657663f03a"),
        PublicFile("test.csv", 239_980, "c9feb8bd9f9ed21a2095326fa1a61eadbdbc969f8f1010b9f0eed4cc0c958b50"),
    ),
    by_hand=INTENTS_BY_HAND,
)

STACKOVERFLOW_TAGS = (
    "ajax apache bash cocoa drupal excel haskell hibernate linq magento matlab oracle osx qt scala "
    "sharepoint spring svn visual-studio wordpress"
)

STACKOVERFLOW_20 = PublicSet(
    name="stackoverflow-20",
    title="stackoverflow-20: titles of questions on Stack Overflow",
    kind="texts",
    n_train=12_000,
    n_test=6_000,
    sample="the title of one question in English",
    class_names=tuple(STACKOVERFLOW_TAGS.split()),
    new_classes=5,
    source="https://github.com/jacoxu/StackOverflow",
    authors=(
        "J. Xu, P. Wang, G. Tian, B. Xu, J. Zhao, F. Wang, H. Hao: Short text clustering via convolutional "
        "neural networks, NAACL VSM-NLP, 2015; titles by users of Stack Overflow"
    ),
    licence="None stated for the selection; Stack Overflow publishes its posts under Creative Commons BY-SA",
    caveats="Many titles name their own tag, so that the word alone gives the class away.",
    folder="intents/stackoverflow",
    files=(
        PublicFile("train.csv", 718_276, "7102750abf3d188d1e058b311127cadfe6f477031d9430201561a59b10fe4f42"),
        PublicFile("test.csv", 359_131, "1e884acbd0a5f11825502edbd805abb0720b0bf3525b4ea0762b0952855b9360"),
    ),
    by_hand=INTENTS_BY_HAND,
)

SNIPS_7 = PublicSet(
    name="snips-7",
    title="snips-7: requests to a voice assistant",
    kind="texts",
    n_train=13_084,
    n_test=700,
    sample="one request in English",
    class_names=(
        "AddToPlaylist",
        "BookRestaurant",
        "GetWeather",
        "PlayMusic",
        "RateBook",
        "SearchCreativeWork",
        "SearchScreeningEvent",
    ),
    new_classes=2,
    source="https://github.com/sonos/nlu-benchmark",
    authors=(
        "A. Coucke, A. Saade, A. Ball et al.: Snips voice platform: an embedded spoken language "
        "understanding system for private-by-design voice interfaces, arXiv:1805.10190, 2018"
    ),
    licence="CC0 1.0; the authors ask for citation",
    caveats="Nearly solved: the requests follow a few patterns, and the seven intents have little in common.",
    folder="intents/snips",
    files=(
        PublicFile("train.csv", 812_027, "4e6d2c296d98e62a3c2bb9b0969742484609822cc7b4e7973616734972422d51"),
        PublicFile("test.csv", 43_812, "bf22736254d8e630145a85f40e9316b532a6d124141de75f9d6194bda7354e7b"),
    ),
    by_hand=INTENTS_BY_HAND,
)

SETS = {
    s.name: s
    for s in (
        MNIST,
        FASHION_MNIST,
        CIFAR_100,
        DIGITS,
        RF_50_SIM,
        WIFI_CSI_30,
        BANKING77,
        STACKOVERFLOW_20,
        SNIPS_7,
    )
}
