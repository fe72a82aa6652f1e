"""Labels of the current date or time, and of ids, in many languages."""

import re

# Labels that mark a current value. Separated by commas and line ends.
_NOW = """
current time, current date, current datetime, current date time, current date and time, current date & time,
current date/time, current time and date, current timestamp, current time stamp, current unix time,
current unix timestamp, current epoch, current epoch time, current time in seconds, current day,
current day and time, current date and day, current local time, current local date, current local date and time,
current utc time, current utc date, current utc date and time, current utc datetime, current server time,
current system time, current weekday, current day of the week, current day of week, current month, current year,
current moment, present date, present time, today's date, todays date, today's date and time, today date, date today,
date and time now, time now, utc now, now utc, local time, server time, system time, system date, local date,
currentdate, currenttime, currentdatetime, currenttimestamp, todaysdate, date of today, time of this request,
request time, request date, request timestamp, session start time, session started at, session started,
conversation started at, conversation start time, conversation start, message sent at, message received at,
request received at, knowledge of today, aktuelle zeit, aktuelle uhrzeit, aktuelles datum,
aktuelles datum und uhrzeit, aktuelles datum/uhrzeit, aktuelles datum und aktuelle uhrzeit,
aktuelle uhrzeit und datum, aktuelle ortszeit, aktuelle systemzeit, aktueller zeitpunkt, aktueller zeitstempel,
aktueller tag, aktueller wochentag, aktueller monat, aktuelles jahr, heutiges datum, heutige datum, heutiger tag,
datum heute, datum von heute, derzeitige uhrzeit, jetzige uhrzeit, systemzeit, ortszeit, date du jour, date actuelle,
date d'aujourd'hui, date courante, heure actuelle, heure courante, heure locale, date et heure actuelles,
date et heure actuelle, date et heure courantes, date et heure du jour, horodatage actuel, jour actuel, fecha actual,
fecha de hoy, fecha del día, hora actual, fecha y hora actual, fecha y hora actuales, hora local, hora local actual,
día actual, data odierna, data attuale, data corrente, data di oggi, ora attuale, ora corrente, ora locale,
data e ora attuali, data e ora attuale, data e ora correnti, data e ora corrente, orario attuale, giorno attuale,
data atual, data actual, data de hoje, hora atual, horário atual, data e hora atual, data e hora atuais,
data e hora actuais, dia atual, huidige datum, huidige tijd, huidige datum en tijd, huidige tijdstip,
huidig tijdstip, huidige dag, datum van vandaag, lokale tijd, aktualna data, aktualny czas, aktualna godzina,
aktualna data i godzina, aktualna data i czas, dzisiejsza data, data dzisiejsza, bieżąca data, bieżący czas,
bieżąca godzina, obecna data, obecny czas, obecna godzina, aktuální datum, aktuální čas, aktuální datum a čas,
současný čas, současné datum, dnešní datum, aktuálny čas, aktuálny dátum, aktuálny dátum a čas, dnešný dátum,
dagens datum, aktuellt datum, aktuell tid, aktuellt datum och tid, nuvarande tid, nuvarande datum,
nuvarande datum och tid, datum och tid nu, dagens dato, nåværende tid, nåværende dato, nåværende klokkeslett,
nåværende dato og tid, nåværende tidspunkt, aktuell dato, nuværende tid, nuværende dato, nuværende tidspunkt,
nuværende dato og tid, aktuel dato, aktuel tid, tämänhetkinen aika, tämänhetkinen päivämäärä, nykyinen aika,
nykyinen päivämäärä, nykyinen kellonaika, nykyinen päivämäärä ja aika, nykyinen päivämäärä ja kellonaika,
tämän päivän päivämäärä, tämä päivä, kellonaika nyt, päivämäärä tänään, kello nyt, mai dátum, jelenlegi idő,
jelenlegi dátum, jelenlegi dátum és idő, pontos idő, aktuális dátum, aktuális idő, a mai dátum, data curentă,
data de azi, data de astăzi, ora curentă, data și ora curentă, τρέχουσα ώρα, τρέχουσα ημερομηνία,
τρέχουσα ημερομηνία και ώρα, σημερινή ημερομηνία, текущее время, текущая дата, текущие дата и время,
текущая дата и время, текущее дата и время, сегодняшняя дата, сегодняшнее число, дата сегодня, московское время,
местное время, текущий день, время сейчас, поточний час, поточна дата, поточні дата та час, поточні дата й час,
поточні дата і час, поточна дата та час, поточна дата і час, сьогоднішня дата, şu anki saat, şu anki tarih,
şu anki zaman, şu anki tarih ve saat, şu anki tarih/saat, güncel tarih, güncel saat, güncel tarih ve saat,
geçerli tarih, geçerli saat, bugünün tarihi, mevcut tarih, mevcut saat, mevcut zaman, şimdiki zaman, الوقت الحالي,
التاريخ الحالي, تاريخ اليوم, التاريخ والوقت الحالي, التاريخ والوقت الحاليان, الوقت والتاريخ الحالي,
التاريخ والوقت الحاليين, الساعة الآن, الوقت الآن, التوقيت الحالي, الساعة الحالية, השעה הנוכחית, התאריך הנוכחי,
תאריך נוכחי, שעה נוכחית, התאריך היום, תאריך היום, השעה עכשיו, השעה כעת, זמן נוכחי, הזמן הנוכחי, תאריך ושעה נוכחיים,
התאריך והשעה הנוכחיים, התאריך והשעה כעת, زمان فعلی, تاریخ امروز, تاریخ فعلی, ساعت فعلی, تاریخ و زمان فعلی,
वर्तमान समय, वर्तमान तिथि, वर्तमान तारीख, वर्तमान दिनांक, वर्तमान तिथि और समय, वर्तमान तारीख और समय,
वर्तमान दिनांक और समय, आज की तारीख, आज की तिथि, आज का दिनांक, अभी का समय, अभी समय, thời gian hiện tại, ngày hiện tại,
giờ hiện tại, ngày giờ hiện tại, ngày và giờ hiện tại, ngày hôm nay, waktu saat ini, tanggal saat ini,
tanggal hari ini, waktu sekarang, tanggal sekarang, jam sekarang, tanggal dan waktu saat ini
"""

# The same in scripts without spaces between words, or with combining marks.
_NOW_WITHOUT_BLANKS = """
現在の時刻, 現在時刻, 現在の日時, 現在日時, 現在の日付, 現在日付, 現在の時間, 現在時間, 現在の日付と時刻,
今日の日付, 本日の日付, 本日, 今日, 今の時刻, 今の時間, ただいまの時刻, 現在, 今
当前时间, 当前日期, 当前日期和时间, 当前日期与时间, 当前日期时间, 当前时刻, 当前系统时间, 当前北京时间, 现在时间,
现在的时间, 现在时刻, 今天的日期, 今天日期, 今日日期, 今天, 今日, 现在, 系统时间, 北京时间, 此刻
當前時間, 當前日期, 當前日期和時間, 目前時間, 目前日期, 目前日期與時間, 現在的時間, 今天日期, 今天的日期, 系統時間
현재 시간, 현재 시각, 현재 날짜, 현재 일시, 현재시간, 현재시각, 현재일시, 현재 날짜와 시간, 현재 날짜 및 시간,
현재 날짜/시간, 현재 시각 및 날짜, 오늘 날짜, 오늘의 날짜, 오늘날짜, 오늘, 지금, 지금 시간, 지금 시각, 현재
เวลาปัจจุบัน, วันที่ปัจจุบัน, วันที่และเวลาปัจจุบัน, วันนี้, วันที่วันนี้, ขณะนี้, ตอนนี้
"""

# Labels that may occur in any document: they need a date near now behind them.
_BARE = """
date, time, timestamp, datetime, date and time, date/time, date & time, time stamp, day, datum, uhrzeit, zeit,
zeitstempel, datum und uhrzeit, datum/uhrzeit, heure, date et heure, jour, horodatage, fecha, hora, fecha y hora, data,
ora, data e ora, giorno, orario, data e hora, tijd, datum en tijd, tijdstip, godzina, czas, data i godzina, čas,
datum a čas, dátum, dátum a čas, tid, datum och tid, dato, dato og tid, klokkeslett, aika, päivämäärä, päiväys,
dátum és idő, idő, ημερομηνία, ώρα, ημερομηνία και ώρα, дата, время, дата и время, час, дата та час, tarih, saat,
tarih ve saat, zaman, التاريخ, الوقت, التاريخ والوقت, תאריך, שעה, תאריך ושעה, दिनांक, तारीख, समय, तिथि, ngày,
thời gian, ngày giờ, tanggal, waktu, jam, epoch, unix time, unix timestamp, ts, today's day
日付, 日時, 時刻, 時間, 日期, 时间, 日期和时间, 日期时间, 時間, 日期時間, 날짜, 시간, 시각, 일시, วันที่, เวลา
"""
# Words that stand for "now" and "today": a label only with a verb or a colon behind them.
_ADVERBS = """
today, now, right now, heute, jetzt, aujourd'hui, maintenant, hoy, ahora, oggi, adesso, hoje, agora, vandaag, nu,
dzisiaj, dziś,
teraz, dnes, nyní, idag, i dag, tänään, ma, astăzi, azi, acum, σήμερα, τώρα, сегодня, сейчас, сьогодні, зараз,
bugün, şimdi, şu an,
اليوم, الآن, היום, עכשיו, امروز, اکنون, आज, अभी, hôm nay, bây giờ, hari ini, sekarang,
本日, 今日, 現在, 今, 今天, 今日, 现在, 此刻, 오늘, 지금, 현재, วันนี้, ขณะนี้, ตอนนี้
"""

# The same with their verb; possible beginnings of any sentence.
_BEGINNINGS = """
it is, it's now, it is now, it is currently, it's currently, the time is, the date is, the day is, es ist, es ist jetzt,
jetzt ist es, heute haben wir, wir haben heute, on est, il est, nous sommes, nous sommes aujourd'hui,
aujourd'hui nous sommes,
il est maintenant, il est actuellement, ahora son, ahora mismo son, son las, estamos a, hoy estamos a, adesso sono,
sono le,
oggi siamo, agora são, het is nu, jest teraz, dziś mamy, dzisiaj mamy, nyní je, dnes je, právě je, teď je, klockan är,
klockan är nu, klokken er, kello on, hôm nay là ngày, bây giờ là
"""

_VERBS = """
is, is now, is currently, ist, est, es, son, son las, son la, è, sono le, è le, é, são, são as, is het, jest, to,
mamy, je,
je právě, är, är det, er, er det, on, este, είναι, это, це, hu, هو, هي, है, là, adalah, הוא, היא, set to, equals,
siamo, sommes
"""
_VERBS_WITHOUT_BLANKS = "は 是 为 為 은 는 이 คือ"

_CONNECTORS = """
der, den, dem, es, le, el, il, l', la, o, the, now, currently, at, um, à, a las, a, às, alle, om, kl, kl., klo,
saat, dia, día,
giorno, jour, tag, dzień, ngày, pukul, am, az, de, gerade, nu, teď, právě, utc, gmt, in utc, יום, يوم
"""

# Weekdays in front of a date, in languages that ``calendar_words`` lacks.
_WEEKDAYS = """
יום שבת, thứ hai, thứ ba, thứ tư, thứ năm, thứ sáu, thứ bảy, chủ nhật, วันจันทร์, วันอังคาร, วันพุธ, วันพฤหัสบดี, วันศุกร์,
วันเสาร์, วันอาทิตย์,
วันจันทร์ที่, วันอังคารที่, วันพุธที่, วันพฤหัสบดีที่, วันศุกร์ที่, วันเสาร์ที่, วันอาทิตย์ที่, شنبه, یکشنبه, دوشنبه, سه‌شنبه, چهارشنبه, پنجشنبه, جمعه,
יום ראשון, יום שני, יום שלישי, יום רביעי, יום חמישי, יום שישי, שבת, ngày
"""

# Words in front of ``id``, and complete labels of some languages.
REQUEST_WORDS = "request req trace run correlation span message msg job execution invocation completion traceparent"
CONVERSATION_WORDS = "session sess conversation conv chat thread user visitor"
_OTHER_CONVERSATION = """
sitzungs-id, sitzungsid, sitzungskennung, gesprächs-id, benutzer-id, nutzer-id, id de session,
identifiant de session, identifiant de conversation, id de conversation, identifiant utilisateur, id de sesión,
identificador de sesión, id de la sesión, id de conversación, id de usuario, id sessione, id di sessione,
id della sessione, id conversazione, id utente, id da sessão, id de sessão, identificador da sessão, id da conversa,
id do usuário, id do utilizador, sessie-id, gesprek-id, gespreks-id, gebruikers-id, id sesji, identyfikator sesji,
id rozmowy, id użytkownika, id relace, id uživatele, sessions-id, användar-id, istunnon tunnus, id сессии, id сеанса,
идентификатор сессии, идентификатор сеанса, id разговора, id диалога, id пользователя, id сесії, ідентифікатор сесії,
id користувача, oturum kimliği, oturum id, kullanıcı kimliği, kullanıcı id, معرف الجلسة, معرّف الجلسة, معرف المستخدم,
מזהה שיחה, מזהה משתמש, מזהה סשן, सत्र आईडी, सत्र id, mã phiên, id phiên, mã người dùng, id sesi, id pengguna,
会话id, 会话 id, 会话编号, 用户id, 用户 id, 對話id, 會話id, セッションid, セッション id, 会話id, ユーザーid,
ユーザー id, 세션 id, 세션id,
대화 id, 사용자 id
"""
_OTHER_REQUEST = """
anfrage-id, anfragen-id, vorgangs-id, id de requête, id de la requête, identifiant de requête, id de solicitud,
id de la solicitud, id de petición, id richiesta, id della richiesta, id da requisição, id da solicitação,
verzoek-id, aanvraag-id, id żądania, identyfikator żądania, id požadavku, begäran-id, id запроса, идентификатор запроса,
id запиту, ідентифікатор запиту, istek kimliği, istek id, معرف الطلب, מזהה בקשה, अनुरोध आईडी, mã yêu cầu, id yêu cầu,
id permintaan, 请求id, 请求 id, 请求编号, 請求id, 追踪id, 跟踪id, リクエストid, リクエスト id, トレースid, 요청 id,
요청id, 추적 id
"""


def _phrases(text: str) -> frozenset[str]:
    return frozenset(each for line in text.splitlines() for part in line.split(",") if (each := part.strip()))


NOW_LABELS = _phrases(_NOW) | _phrases(_NOW_WITHOUT_BLANKS) | _phrases(_ADVERBS) | _phrases(_BEGINNINGS)
"""Labels of current values, in lower case, with ASCII apostrophes."""

BARE_LABELS = _phrases(_BARE)
"""Labels of any date or time."""

WITHOUT_BLANKS = _phrases(_NOW_WITHOUT_BLANKS) | {each for each in BARE_LABELS if each[0] >= "\u0e00"}
"""Labels that may begin within a word, in scripts without spaces between words."""

ADVERBS = _phrases(_ADVERBS)
"""Labels of current values that need a verb or a colon."""

BEGINNINGS = _phrases(_BEGINNINGS)
"""Labels of current values that include their verb."""

VERBS_WITHOUT_BLANKS = frozenset(_VERBS_WITHOUT_BLANKS.split())
VERBS = _phrases(_VERBS) | VERBS_WITHOUT_BLANKS
"""Verbs between a label and its value."""

WEEKDAYS = _phrases(_WEEKDAYS)
CONNECTORS = _phrases(_CONNECTORS) | VERBS | WEEKDAYS
"""Words that may be between a label and its value."""

WITHOUT_BLANKS_BETWEEN = VERBS_WITHOUT_BLANKS | {each for each in WEEKDAYS if each[0] >= "\u0e00"}

JOINING = frozenset("and und et y e i a och og ja и та й і ve và dan و ו और και și is".split())
"""Words that join two sentences."""

OTHER_REQUEST_IDS = _phrases(_OTHER_REQUEST)
OTHER_CONVERSATION_IDS = _phrases(_OTHER_CONVERSATION)

WORDS = re.compile(r"[^\W\d_]+")

LAST_WORDS = frozenset(
    words[-1] for each in (NOW_LABELS | BARE_LABELS) - WITHOUT_BLANKS if (words := WORDS.findall(each))
)
"""Last words of all labels with spaces: a line without one of them has no such label."""
