"""Words in headings, tags and labels that indicate data, and words that indicate instructions or context."""

import re

DATA_WORDS = frozenset(
    """
    document documents doc docs contract contracts agreement agreements quote quotes quotation example examples source
    sources article articles email emails mail mails letter letters transcript transcripts log logs logfile data dataset
    datasets file files excerpt excerpts extract page pages chunk chunks passage passages snippet snippets case cases
    history knowledge kb faq faqs reference references ticket tickets invoice invoices receipt report reports record
    records minutes memo note notes diff patch commit commits changelog release csv json yaml xml table tables output
    outputs input inputs sample samples demo demonstration demonstrations shot shots result results search retrieved
    retrieval corpus text texts content contents conversation dialogue dialog messages thread message post posts comment
    comments review reviews order orders event events schedule calendar appointment appointments attachment attachments
    statement statements policy clause clauses annex appendix exhibit item items story poem book chapter section entry
    entries list query queries answer answers question questions payload response body html webpage website url news
    memory memories summary bookings booking deadlines deadline timeline meeting meetings lease judgment ruling will
    prescription discharge chart labs observations shipment shipments delivery deliveries inbox digest
    dokument dokumente vertrag verträge vereinbarung zitat beispiel beispiele quelle quellen artikel brief briefe
    protokoll auszug auszüge seite seiten abschnitt verlauf wissen wissensbasis rechnung rechnungen bericht berichte
    tabelle ausgabe eingabe anhang kündigung mietvertrag arbeitsvertrag gesprächsverlauf termine akte
    contrat contrats accord citation exemple exemples sources courriel courriels lettre extrait extraits historique
    connaissances facture factures rapport rapports procès-verbal journal annexe pièce bail
    documento documentos contrato contratos acuerdo cita ejemplo ejemplos fuente fuentes artículo correo correos carta
    registro registros extracto historial conocimiento factura facturas informe informes anexo
    documenti contratto contratti citazione esempio esempi fonte fonti articolo lettera estratto cronologia storico
    fattura fatture rapporto allegato verbale
    exemplo exemplos fontes artigo trecho trechos histórico fatura nota relatório anexos
    documenten contracten overeenkomst citaat voorbeeld voorbeelden bron bronnen fragment geschiedenis factuur
    rapporten bijlage
    dokumenty umowa umowy cytat przykład przykłady źródło źródła artykuł list fragmenty historia faktura raport
    smlouva smlouvy citace příklad příklady zdroj zdroje článek dopis úryvek historie
    avtal exempel källa källor utdrag kontrakt historik
    asiakirja asiakirjat sopimus esimerkki esimerkit lähde lähteet ote
    документ документы договор договоры цитата пример примеры источник источники статья письмо фрагмент фрагменты
    журнал история счёт отчёт приложение протокол лог логи знания
    документи договір приклад приклади джерело джерела стаття лист фрагменти історія
    belge belgeler sözleşme alıntı örnek örnekler kaynak kaynaklar makale mektup geçmiş fatura rapor
    وثيقة وثائق المستندات المستند عقد العقد اقتباس مثال أمثلة مصدر المصادر مقال رسالة سجل فاتورة تقرير
    מסמך מסמכים חוזה ציטוט דוגמה דוגמאות מקור מקורות מאמר מכתב היסטוריה חשבונית
    wiedzy wiedza wissensdatenbank conoscenza conoscenze conhecimento conhecimentos kennis kennisbank kunskapsbas
    tietopankki znalostí znalostní báze знаний знань знання bilgi المعرفة ידע ज्ञान tietoa handbuch handbook manual
    दस्तावेज़ दस्तावेज अनुबंध उदाहरण स्रोत लेख पत्र इतिहास
    """.split()
)
"""Text under a heading or in a tag with one of these words is data."""

DATA_WITHOUT_BLANKS = tuple(
    "文書 書類 資料 契約 引用 例 用例 記事 メール 手紙 議事録 履歴 ログ データ 参考 出典 文档 文件 合同 示例 例子 "
    "样例 文章 邮件 记录 日志 数据 "
    "历史 资料 来源 知识 片段 文檔 範例 郵件 紀錄 문서 계약 예시 예제 기사 이메일 편지 기록 로그 데이터 자료 출처 "
    "이력".split()
)

FINE_WORDS = frozenset(
    """
    env environment context system info information instructions instruction rules rule role persona task tasks
    guidelines guideline session request runtime meta metadata current now time date datetime today timestamp settings
    setting config configuration state agent assistant user prompt identity behavior behaviour important reminder
    reminders tool tools capabilities general preamble header about workspace working directory cwd platform os shell
    id trace constraints style tone profile customer variables vars details the your claude gpt model core overview
    locale timezone location developer main background goal objective mission
    """.split()
)
"""A tag that consists of such words does not contain data."""

INLINE_TAGS = frozenset("b i u em strong br p span a hr small sub sup mark kbd big center font s del ins".split())
"""HTML tags that are ignored."""

_FINE_ELSEWHERE = frozenset(
    """
    kontext umgebung systeminformationen systeminfo sitzung rahmendaten rolle aufgabe regeln anweisungen profil contexte
    environnement session rôle règles consignes profil contexto entorno sesión rol reglas instrucciones perfil contesto
    ambiente sessione ruolo regole istruzioni profilo sessão papel regras instruções omgeving sessie regels instructies
    kontekst środowisko sesja rola zasady instrukcje prostředí relace pravidla pokyny miljö regler konteksti säännöt
    контекст окружение среда сессия роль правила инструкции профиль середовище сесія bağlam ortam oturum kurallar
    سياق السياق البيئة الجلسة התקשרות הקשר סביבה संदर्भ bối cảnh konteks
    """.split()
)
_FINE_WITHOUT_BLANKS = tuple(
    "上下文 环境 環境 情報 信息 資訊 背景 设定 設定 ルール 规则 規則 役割 角色 정보 환경 컨텍스트 규칙 역할 "
    "บริบท".split()
)

CONTEXT_LABELS = frozenset(
    """
    time date datetime timestamp today now day weekday month year week timezone tz zone utc locale language lang
    location city country region platform os system shell version model device channel session request trace user
    username cwd directory workspace branch git cutoff knowledge environment env client tenant app application
    assistant role persona mode tone host hostname browser agent name id conversation chat run correlation span local
    uhrzeit datum zeit zeitzone sprache ort stadt land benutzer nutzer kanal wochentag sitzung gerät standort
    heure jour fuseau langue lieu ville pays utilisateur canal fecha hora zona idioma ubicación ciudad país usuario
    data ora fuso lingua luogo città utente giorno horário local cidade usuário tijd tijdzone taal locatie gebruiker
    czas godzina strefa język lokalizacja użytkownik čas jazyk místo uživatel
    время дата часовой пояс язык город пользователь час мова місто користувач saat tarih dil konum kullanıcı
    الوقت التاريخ اللغة المدينة المستخدم תאריך שעה שפה עיר משתמש समय तारीख दिनांक भाषा शहर उपयोगकर्ता
    """.split()
)
"""Labels of lines that may be next to the current date."""

CONTEXT_WITHOUT_BLANKS = tuple(
    "時 日付 日時 言語 場所 都市 利用者 ユーザー 曜日 时间 日期 时区 语言 地点 城市 用户 星期 會話 会话 時間 시간 "
    "날짜 언어 위치 도시 사용자 요일".split()
)

NAME_PIECES = re.compile(r"[^\W\d_]+?(?=[A-Z][a-z])|[^\W\d_]+")


def speaks_of_data(words: str) -> bool:
    """Whether a heading indicates data."""
    low = words.lower()
    return any(each in DATA_WORDS for each in re.findall(r"[^\W\d_]+", low)) or (
        not low.isascii() and any(each in low for each in DATA_WITHOUT_BLANKS)
    )


def speaks_of_now(words: str) -> bool:
    """Whether the current date may be under a heading."""
    low = words.lower()
    return any(
        each in FINE_WORDS or each in _FINE_ELSEWHERE or each in CONTEXT_LABELS
        for each in re.findall(r"[^\W\d_]+", low)
    ) or (not low.isascii() and any(each in low for each in _FINE_WITHOUT_BLANKS + CONTEXT_WITHOUT_BLANKS))


def holds_data(tag: str) -> bool:
    """Whether the content of a tag is data or unknown."""
    if tag.lower() in INLINE_TAGS:
        return False
    pieces = [each.lower() for each in NAME_PIECES.findall(tag)]
    return any(each in DATA_WORDS for each in pieces) or not any(each in FINE_WORDS for each in pieces)
