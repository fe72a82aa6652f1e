"""Words in front of a value that indicate its type: id, time, person, locale."""

ID_WORDS = frozenset(
    """
    # id ids uuid guid request req trace traceparent span session sess sid correlation conversation conv chat thread
    transaction tx txn token nonce salt hash digest checksum etag commit sha revision rev build release run job task
    step turn message msg order ord bestellung commande pedido ordine ticket tkt case invoice rechnung facture factura
    inv customer cust cus client user usr account acct konto kunde kundennummer auftrag device host node pod
    worker instance port item doc ref reference nr no num number nummer
    numéro número numero serial key version ver ip address batch
    attempt try iteration round counter count seq sequence index idx page part shard worker process pid event call
    номер заказ 编号 编号为 订单 番号 번호
    """.split()
)

TIME_WORDS = frozenset(
    """
    time timestamp ts epoch now date unix at datetime current created updated issued iat exp expires nanos ns millis ms
    zeit datum uhrzeit jetzt heute stand heure maintenant hora fecha ahora ora data adesso agora czas teraz время сейчас
    year jahr année año anno ano since until uptime 时间 時間 時刻 시간
    """.split()
)

PERSON_WORDS = frozenset(
    """
    name names user customer client kunde kundin nutzer benutzer cliente utilisateur usuario utente employee patient
    student author assignee contact mr mrs ms miss dr prof herr frau herrn monsieur madame señor señora sr sra signor
    dear hello hi hallo bonjour hola ciao named called to with for hilfst assist assisting help helping von bei
    имя пользователь клиент 姓名 名前 客户 用户 이름 고객
    """.split()
)

LOCALE_WORDS = frozenset(
    """
    locale lang language languages sprache langue idioma lingua taal język язык dil 语言 言語 언어 country land region
    pays país timezone tz
    """.split()
)

LANGUAGE_NAMES = frozenset(
    """
    english german french spanish italian portuguese dutch polish russian turkish japanese chinese korean arabic hindi
    swedish danish norwegian finnish czech greek hebrew ukrainian hungarian romanian vietnamese thai indonesian
    deutsch englisch französisch spanisch italienisch portugiesisch anglais français allemand espagnol inglés español
    alemán francés italiano italien
    """.split()
)
